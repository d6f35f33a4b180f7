"""Rows of the comparison: loads and one sample of each.

Each load matters to users. A row opens servers and runners of both sides once, and gives a function
for each side that takes a sample. Servers of both sides live while a row is measured; one of them
is idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from threading import Thread

import numpy as np

from benchmarks.compare.judgement import Better
from benchmarks.compare.sides import CORES, Runner, Side
from benchmarks.overload.http2 import Connection, Outcome, closed_loop, open_loop
from benchmarks.overload.kinds import bilinear, requests
from benchmarks.servers import Server
from benchmarks.wire.loads import EVALUATE, many_at_once, one_by_one, unary_bytes

Figures = dict[str, float]
Take = Callable[[], Figures]

_SECONDS = 1.0
# Seconds at the start of an overload, which a server treats as a burst, and measured seconds after
# it.
_ONSET_S, _LASTING_S = 2.0, 3.0
_CALLERS = 4
_SMALL_MESSAGE = requests()["tiny"][0]
_MEDIUM_MESSAGE = bilinear(1, 3, 64, 64)
_LONG_MESSAGE = requests()["long"][0]
_SHORT_MESSAGE = requests()["short"][0]
# Calls a second of the bystander.
_SELDOM = 100.0
_MEMORY_SIDE, _FULL_MEMORY_SIDE = 8192, 23168


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A load, measured on both sides in turn.

    meaning  description of the row
    figures  judged figures, and their better direction
    open     starts servers and runners until a stack closes; returns functions that take samples
    """

    meaning: str
    figures: dict[str, Better]
    open: Callable[[ExitStack, Sequence[Side]], list[Take]]


def _each(
    take_of: Callable[[ExitStack, Side], Take],
) -> Callable[[ExitStack, Sequence[Side]], list[Take]]:
    """Return an opener of sides that are independent of each other."""
    return lambda stack, sides: [take_of(stack, side) for side in sides]


def _unary(
    stack: ExitStack,
    side: Side,
    *,
    in_flight: int,
    message: bytes = _SMALL_MESSAGE,
    flags: Sequence[str] = ("--log-level", "warning"),
) -> Take:
    server = stack.enter_context(side.serving(*flags))
    call = unary_bytes(server, message)

    def take() -> Figures:
        if in_flight == 1:
            sample = one_by_one(call, server, seconds=_SECONDS)
        else:
            sample = many_at_once(
                server, message, connections=1, in_flight=in_flight, seconds=_SECONDS
            )
        return {
            "rate": sample.rate,
            "p50_ms": sample.p50_ms,
            "p99_ms": sample.p99_ms,
            "server_ms": sample.server_ms,
        }

    return take


def _sdk(stack: ExitStack, side: Side, *, do: str, seconds: float = _SECONDS) -> Take:
    """Have the side's own SDK call its own server."""
    server = stack.enter_context(side.serving("--log-level", "warning"))
    runner = stack.enter_context(side.runner())
    runner(do, address=server.address, seconds=0.3)

    def take() -> Figures:
        before = server.cpu_s()
        found = runner(do, address=server.address, seconds=seconds)
        if calls := found.pop("calls", None):
            found["server_ms"] = 1e3 * (server.cpu_s() - before) / calls
        return found

    return take


def _overload(stack: ExitStack, sides: Sequence[Side]) -> list[Take]:
    """Find the last side's peak; load both at three times it.

    The calls of both sides are due at three times that rate.
    """
    flags = ("--log-level", "warning")
    servers: list[Server] = [stack.enter_context(side.serving(*flags)) for side in sides]
    for server in servers:
        _loaded(server, lambda some: closed_loop(some, _CALLERS, 0.5))
    outcomes = _loaded(servers[-1], lambda some: closed_loop(some, _CALLERS, 2.0))
    rate = 3 * sum(one.status == 0 for one in outcomes) / 2.0
    return [partial(_overloaded, server, rate) for server in servers]


def _loaded(server: Server, run: Callable[[Sequence[Connection]], object]) -> list[Outcome]:
    connections = [Connection(server.address, EVALUATE, _LONG_MESSAGE) for _ in range(_CALLERS)]
    run(connections)
    for connection in connections:
        connection.close()
    return [one for connection in connections for one in connection.over]


def _overloaded(server: Server, rate: float) -> Figures:
    began = time.perf_counter()
    outcomes = _loaded(server, lambda some: open_loop(some, rate, _ONSET_S + _LASTING_S))
    later = [one for one in outcomes if one.due >= began + _ONSET_S]
    served = [1e3 * one.seconds for one in later if one.status == 0]
    refused = [1e3 * one.seconds for one in later if one.status != 0]
    return {
        "goodput": len(served) / _LASTING_S,
        "p99_ms": float(np.percentile(served or [np.inf], 99)),
        "refused_p50_ms": float(np.median(refused or [0.0])),
    }


def _bystander(stack: ExitStack, side: Side) -> Take:
    """Call now and then while others keep the server busy.

    The others make short calls.
    """
    server = stack.enter_context(side.serving("--log-level", "warning"))

    def take() -> Figures:
        busy = [Connection(server.address, EVALUATE, _SHORT_MESSAGE) for _ in range(_CALLERS)]
        lone = Connection(server.address, EVALUATE, _SMALL_MESSAGE)
        load = Thread(target=closed_loop, args=(busy, _CALLERS, _LASTING_S))
        load.start()
        open_loop([lone], _SELDOM, _LASTING_S)
        load.join()
        for connection in (*busy, lone):
            connection.close()
        ms = [1e3 * one.seconds for one in lone.over if one.status == 0]
        return {
            "p50_ms": float(np.median(ms)),
            "p99_ms": float(np.percentile(ms, 99)),
            "busy_rate": sum(len(one.over) for one in busy) / _LASTING_S,
        }

    return take


def _memory(side: Side, *, numbers: int) -> Figures:
    """Stream once, between new processes.

    Two processes of the same code keep 110 and 134 MiB for life, so processes are not used again.
    """
    with side.serving("--log-level", "warning") as server, side.runner() as runner:
        return runner("memory", address=server.address, pid=server.pid, side=numbers)


def _start(side: Side) -> Figures:
    began = time.perf_counter()
    with side.serving(cores=CORES):
        return {"ready_s": time.perf_counter() - began}


def _local(stack: ExitStack, side: Side, **order: object) -> Take:
    runner: Runner = stack.enter_context(side.runner())
    take = partial(runner, seconds=0.3, **order)  # type: ignore[arg-type]
    take()
    return take


def _locals() -> dict[str, ComparedRow]:
    """Return the rows of LocalClient on one thread."""
    rows: dict[str, ComparedRow] = {}
    for kind in ("bilinear", "bilinear, channels-last", "nearest", "bicubic"):
        for dtype in ("float32", "bfloat16"):
            words = kind.replace(", channels-last", "-nxc")
            order = partial(_local, do="local", kind=kind, dtype=dtype)
            rows[f"local-{words}-{dtype}"] = ComparedRow(
                f"LocalClient, {kind} x2 of 25.7 MB in float32, in {dtype}, 1 thread",
                {"ms": "lower"},
                _each(order),
            )
    rows["local-tiny"] = ComparedRow(
        "LocalClient, bilinear x2 of (1, 3, 32, 32): the fixed cost of a call",
        {"us": "lower"},
        _each(partial(_local, do="tiny")),
    )
    return rows


def rows(*, full: bool = False) -> dict[str, ComparedRow]:
    """Return all rows; full streams 2 GiB instead of 256 MiB."""
    latencies: dict[str, Better] = {
        "rate": "higher",
        "p50_ms": "lower",
        "p99_ms": "lower",
        "server_ms": "lower",
    }
    side = _FULL_MEMORY_SIDE if full else _MEMORY_SIDE
    return {
        "unary-1": ComparedRow(
            "small unary call of a raw client, 1 in flight",
            latencies,
            _each(partial(_unary, in_flight=1)),
        ),
        "unary-16": ComparedRow(
            "small unary calls of a raw client, 16 in flight on one connection",
            latencies,
            _each(partial(_unary, in_flight=16)),
        ),
        "unary-48k-1": ComparedRow(
            "unary call of a raw client, (1, 3, 64, 64) to (1, 3, 32, 32), 1 in flight, as started",
            latencies,
            _each(partial(_unary, in_flight=1, message=_MEDIUM_MESSAGE, flags=())),
        ),
        "unary-48k-4": ComparedRow(
            "the same, 4 in flight on one connection",
            latencies,
            _each(partial(_unary, in_flight=4, message=_MEDIUM_MESSAGE, flags=())),
        ),
        "sdk-small": ComparedRow(
            "Client.evaluate of a small tensor",
            {"rate": "higher", "p50_ms": "lower"},
            _each(partial(_sdk, do="small")),
        ),
        "stream": ComparedRow(
            "Client.evaluate of 25.7 MB up, 6.4 MB down; processor time of both ends for a call",
            {"rate": "higher", "server_ms": "lower", "client_ms": "lower"},
            _each(partial(_sdk, do="large", seconds=1.5)),
        ),
        "many": ComparedRow(
            "evaluate_many of small tensors",
            {"rate": "higher", "server_ms": "lower", "client_us": "lower"},
            _each(partial(_sdk, do="many")),
        ),
        "async-200": ComparedRow(
            "AsyncClient, small calls, 200 in flight",
            {"rate": "higher", "p50_ms": "lower"},
            _each(partial(_sdk, do="concurrent", seconds=1.5)),
        ),
        "overload": ComparedRow(
            "calls of 25 ms due at three times the baseline's peak",
            {"goodput": "higher", "p99_ms": "lower", "refused_p50_ms": "lower"},
            _overload,
        ),
        "bystander": ComparedRow(
            "small calls, one every 10 ms, beside 4 callers whose calls take some 0.1 ms",
            {"p50_ms": "lower", "p99_ms": "lower", "busy_rate": "higher"},
            _each(_bystander),
        ),
        "memory": ComparedRow(
            f"highest anonymous memory while {'2 GiB' if full else '256 MiB'} stream",
            {"server_mib": "lower", "client_mib": "lower"},
            lambda _, both: [partial(_memory, one, numbers=side) for one in both],
        ),
        "start": ComparedRow(
            "from the start of a server with compiled kernels until it serves",
            {"ready_s": "lower"},
            lambda _, both: [partial(_start, one) for one in both],
        ),
        **_locals(),
    }
