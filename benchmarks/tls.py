"""Cost of TLS and tokens beside plain text.

    python -m benchmarks tls [STAGE ...] [--rounds N] [--json FILE]

tiny     12 x 64 numbers by client.evaluate, one call in flight
large    25.7 MB up, 6.4 MB down on a stream
connect  a new client for every call: handshakes take most of the time
guard    microseconds for finding a call's handler, with and without authorization, in this
         process; the server does nothing else for a token

Servers run in processes of their own, the client in this one, all on the same cores. Columns are
those of bench.wire. mTLS is TLS with clients that show a certificate.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.servers import OURS, Server
from benchmarks.wire.loads import OPERATOR, Array, Call, sdk
from benchmarks.wire.rounds import (
    LARGE,
    LARGE_RESULT,
    TINY,
    TINY_RESULT,
    Rows,
    check_equal,
    compare_calls,
    numbers,
    print_rows,
    start,
)
from gradwire import Client
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, add_token
from gradwire_server.observability.recording import Observer
from gradwire_server.rpc.call_context import ActiveCalls
from gradwire_server.rpc.interceptors import AuthorizingHandler
from gradwire_server.security.authorization import Authorizer
from support.certificates import Papers, pair, trusting

_EVALUATE = "/gradwire.v1.GradientService/Evaluate"
_LOOKUPS = 20_000


class _Endpoint(NamedTuple):
    """A server, and arguments for its clients."""

    server: Server
    options: dict[str, Any]


def _ways(stack: ExitStack) -> dict[str, _Endpoint]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    papers, tokens = Papers(folder), folder / "tokens"
    token = {"token": add_token(tokens, name="bench", scopes=list(Scope))}
    asks = ("--tokens", str(tokens))
    private, mutual = _flags(papers.settings), _flags(papers.mutual)
    known = {"credentials": trusting(papers.roots)}
    certified = {"credentials": trusting(papers.roots, pair(papers.authority))}
    return {
        "plain": _Endpoint(start(stack, *OURS), {}),
        "plain, token": _Endpoint(start(stack, *OURS, *asks), token),
        "TLS": _Endpoint(start(stack, *OURS, *private), known),
        "TLS, token": _Endpoint(start(stack, *OURS, *private, *asks), {**known, **token}),
        "mTLS": _Endpoint(start(stack, *OURS, *mutual), certified),
        "mTLS, token": _Endpoint(start(stack, *OURS, *mutual, *asks), {**certified, **token}),
    }


def _flags(settings: Mapping[str, str]) -> tuple[str, ...]:
    words = ((f"--{name.replace('_', '-')}", path) for name, path in settings.items())
    return tuple(word for pair_of in words for word in pair_of)


def _compare(rounds: int, call_of: Callable[[_Endpoint], Call], *, seconds: float = 0.5) -> Rows:
    with ExitStack() as stack:
        ways = _ways(stack)
        calls = {name: call_of(way) for name, way in ways.items()}
        check_equal(calls)
        servers = {name: way.server for name, way in ways.items()}
        return compare_calls(calls, servers, base="plain", rounds=rounds, seconds=seconds)


def _evaluate(way: _Endpoint, source: Array, result: tuple[int, ...]) -> Call:
    return sdk(way.server, source, result, **way.options)


def tiny(rounds: int) -> Rows:
    """Measure small calls."""
    return _compare(rounds, lambda way: _evaluate(way, numbers(TINY), TINY_RESULT))


def large(rounds: int) -> Rows:
    """Measure streams."""
    source = numbers(LARGE)
    return _compare(rounds, lambda way: _evaluate(way, source, LARGE_RESULT), seconds=1.0)


def connect(rounds: int) -> Rows:
    """Measure connections."""
    source = numbers(TINY)

    def anew(way: _Endpoint) -> Array:
        with Client(way.server.address, **way.options) as client:
            return client.evaluate(OPERATOR, source, output_shape=TINY_RESULT)

    return _compare(rounds, lambda way: partial(anew, way))


def guard(rounds: int) -> dict[str, float]:
    """Measure the microseconds of letting a call in."""
    handlers: dict[str, Any] = {_EVALUATE: object()}
    checks: dict[str, Callable[[], object]] = {
        "the handler alone": partial(handlers.get, _EVALUATE),
        "no tokens": partial(
            AuthorizingHandler(handlers, Authorizer(Settings()), ActiveCalls(Observer())).service,
            _Details(),
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, 100):
            path = Path(folder) / f"{count}"
            for number in range(count):
                token = add_token(path, name=f"t{number}", scopes=[Scope.EVALUATE])
            checks[f"a token of {count}"] = partial(
                Authorizer(Settings(tokens=str(path))).refusal,
                Scope.EVALUATE,
                authorization=f"Bearer {token}",
                peer="",
            )
        times: dict[str, list[float]] = {name: [] for name in checks}
        for _ in range(rounds):
            for name, check in checks.items():
                times[name].append(_lookup_us(check))
    return {name: round(statistics.median(taken), 2) for name, taken in times.items()}


@dataclass(slots=True)
class _Details:
    """Details of a call, which grpc has before its body is read."""

    method: str = _EVALUATE
    invocation_metadata: tuple[tuple[str, str | bytes], ...] = ()


def _lookup_us(lookup: Callable[[], object]) -> float:
    """Return the processor time of a lookup, in microseconds.

    Time of other processes does not count.
    """
    started = time.process_time()
    for _ in range(_LOOKUPS):
        lookup()
    return 1e6 * (time.process_time() - started) / _LOOKUPS


_STAGES: dict[str, Callable[[int], Rows]] = {"tiny": tiny, "large": large, "connect": connect}


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("tls", __doc__)
    parser.add_argument("stages", nargs="*", choices=[*_STAGES, "guard", []], metavar="STAGE")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    report: dict[str, Any] = {}
    for stage in arguments.stages or [*_STAGES, "guard"]:
        if stage == "guard":
            report[stage] = guard(arguments.rounds)
            lines = (f"{name:20}{cost:8.2f} us\n" for name, cost in report[stage].items())
            sys.stdout.write("\nguard\n" + "".join(lines))
        else:
            report[stage] = _STAGES[stage](arguments.rounds)
            print_rows({stage: report[stage]})
    machine.write(arguments.json, {"rounds": arguments.rounds, "medians": report})
    return 0
