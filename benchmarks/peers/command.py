"""gradwire beside other servers and PyTorch under the same load.

    python -m benchmarks peers [--rows small,pinned,large,shared,local,perf-analyzer]
                               [--rounds N] [--json FILE]

small   (1, 3, 64, 64) up, (1, 3, 32, 32) down, at 1, 4 and 16 in flight; h2load is the client
pinned  the same, each server on one core and the client on another
large   25.7 MB up, 6.4 MB down, at 1 and 4 in flight; each with its own clients
shared  the same on one host, in shared memory
local   PyTorch's backward beside gradwire's server and LocalClient; two threads
perf-analyzer
        perf_analyzer calls gradwire and Triton by the Open Inference Protocol: small calls at 1, 4
        and 16 in flight, also to gradwire on one core; large ones in system shared memory at 1
        and 4

All but `local` are gradients of bilinear x2, NCHW, float32. Servers and clients share this
machine's cores over loopback. The first use makes virtual environments (1.5 GB) with pip; h2load is
Debian's package nghttp2-client. An unavailable peer is reported and left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.peers import h2load, perf_analyzer, triton_server
from benchmarks.peers.environments import ROOT, Environments, MissingPeerError, say
from benchmarks.peers.environments import h2load as h2load_program
from benchmarks.peers.loops import CallSample
from benchmarks.peers.problems import LARGE, SMALL, Shape, result_shape
from benchmarks.peers.rounds import Peer, compare
from benchmarks.servers import OURS, Server, started

_ROWS: Final = ("small", "pinned", "large", "shared", "local", "perf-analyzer")
_SMALL_SECONDS: Final = 2
_LARGE_SECONDS: Final = 2.0
_SMALL_RESULT_BYTES: Final = 4 * 3 * 32 * 32
_EVALUATE: Final = "/gradwire.v1.GradientService/Evaluate"
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"

Rows = list[dict[str, Any]]


class Comparisons:
    """Servers of one run, started on first use."""

    def __init__(
        self, environments: Environments, stack: ExitStack, *, rounds: int, limit_s: float
    ) -> None:
        self._environments = environments
        self._stack = stack
        self._rounds = rounds
        self._limit_s = limit_s
        self._triton: Server | MissingPeerError | None = None
        self._folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-peers-"))
        )

    def small(self) -> Rows:
        """Compare small calls."""
        return self._compare_small(self._small_peers())

    def pinned(self) -> Rows:
        """Compare small calls, servers on one core, clients on another."""
        cores = sorted(os.sched_getaffinity(0))
        self._stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[:1])
        peers = self._small_peers()
        os.sched_setaffinity(0, cores[-1:])
        return self._compare_small(peers)

    def _compare_small(self, peers: list[Peer]) -> Rows:
        return compare(peers, in_flight=(1, 4, 16), rounds=self._rounds, limit_s=self._limit_s)

    def _small_peers(self) -> list[Peer]:
        program = h2load_program()
        default = self._ours()
        body = self._folder / "gradwire"
        reply = int(_output(sys.executable, "gradwire_client", "body", default.address, str(body)))
        echo = ("-m", "benchmarks.wire.bare_server", "echo", "--reply", str(reply))
        bare = self._stack.enter_context(started(*echo))

        def peer(name: str, server: Server, path: str, sent: Path) -> Peer:
            def take(in_flight: int) -> CallSample:
                return h2load.sampled(
                    program,
                    server,
                    path,
                    body=sent,
                    least_bytes=_SMALL_RESULT_BYTES,
                    in_flight=in_flight,
                    seconds=_SMALL_SECONDS,
                )

            return Peer(name, take)

        peers = [
            peer("gradwire", default, _EVALUATE, body),
            peer("bare grpc.aio", bare, _EVALUATE, body),
        ]
        with _told("Triton"):
            triton, client = self._triton_server(), self._environments.client()
            for model in triton_server.MODELS:
                sent = self._folder / model
                _output(client, "triton_client", "body", model, str(sent))
                peers.append(peer(f"Triton, {model}", triton, _INFER, sent))
        return peers

    def large(self) -> Rows:
        """Compare large calls."""
        peers = [
            self._large("gradwire, Client.evaluate", "gradwire_client", "sdk"),
            self._large("gradwire, stream of ready messages", "gradwire_client", "stream"),
            *self._of_triton(
                ("Triton, ready message", "triton_client", "raw"),
                ("Triton, tritonclient", "triton_client", "sdk"),
            ),
        ]
        return compare(peers, in_flight=(1, 4), rounds=self._rounds, limit_s=self._limit_s)

    def shared(self) -> Rows:
        """Compare large calls from the same host."""
        socket = f"unix:{self._folder}/socket"
        arguments = ("-m", "gradwire_server", "--address", socket)
        ours = self._stack.enter_context(started(*arguments))
        on_socket = Server(socket, ours.pid)
        peers = [
            self._large("gradwire, loopback", "gradwire_client", "sdk"),
            self._large("gradwire, shared memory", "gradwire_client", "sdk", server=on_socket),
            *self._of_triton(("Triton, shared memory", "triton_client", "shared")),
        ]
        return compare(peers, in_flight=(1, 4), rounds=self._rounds, limit_s=self._limit_s)

    def local(self) -> Rows:
        """Compare with PyTorch in the client's process."""
        python = self._environments.models()
        socket = f"unix:{self._folder}/local"
        server = self._ours("--compute-threads", "2", "--local-socket", socket[len("unix:") :])
        arguments = ("local", socket, str(server.pid), str(self._rounds))
        rows: Rows = json.loads(_output(python, *arguments))
        return rows

    def perf_analyzer(self) -> Rows:
        """Compare calls by the Open Inference Protocol, with perf_analyzer as the client."""
        found = perf_analyzer.program(self._environments.client())
        models = [
            f'{name}=torch_upsample_backward:{{"mode":"bilinear","dims":{list(shape)},'
            f'"output_shape":{list(result_shape(shape))}}}'
            for name, shape in (("small", SMALL), ("large", LARGE))
        ]
        ours = self._ours("--open-inference-memory", "*", "--model", " ".join(models))
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        bound = self._ours("--model", models[0])
        os.sched_setaffinity(0, cores)
        servers = [("gradwire", ours, "", "x")]
        with _told("Triton"):
            servers.append(("Triton, kernel", self._triton_server(), "kernel", "GRADIENT"))
        servers.append(("gradwire on one core", bound, "", "x"))

        def peers(model: str, shape: Shape, *options: str) -> list[Peer]:
            def peer(name: str, server: Server, theirs: str, tensor: str) -> Peer:
                sizes = f"{tensor}:{','.join(map(str, shape))}"
                words = (*options, *(("--shape", sizes) if theirs else ()))

                def take(in_flight: int) -> CallSample:
                    return perf_analyzer.sampled(
                        found, server, theirs or model, in_flight=in_flight, options=words
                    )

                return Peer(f"{name}, {model}", take)

            return [peer(*each) for each in servers if model == "small" or each[1] is not bound]

        result_bytes = 4 * math.prod(result_shape(LARGE))
        shared = ("--shared-memory=system", f"--output-shared-memory-size={result_bytes}")
        limited = partial(compare, rounds=self._rounds, limit_s=self._limit_s)
        rows = limited(peers("small", SMALL), in_flight=(1, 4, 16))
        return rows + limited(peers("large", LARGE, *shared), in_flight=(1, 4))

    def _ours(self, *arguments: str) -> Server:
        return self._stack.enter_context(started(*OURS, *arguments))

    def _triton_server(self) -> Server:
        """Start Triton once; a failure is not tried again."""
        if self._triton is None:
            try:
                files, client = self._environments.triton(), self._environments.client()
                self._triton = self._stack.enter_context(triton_server.started(files, client))
            except MissingPeerError as error:
                self._triton = error
        if isinstance(self._triton, MissingPeerError):
            raise self._triton
        return self._triton

    def _of_triton(self, *kinds: tuple[str, str, str]) -> list[Peer]:
        with _told("Triton"):
            server, client = self._triton_server(), self._environments.client()
            return [
                self._large(name, module, kind, server=server, python=client)
                for name, module, kind in kinds
            ]
        return []

    def _large(
        self,
        name: str,
        module: str,
        kind: str,
        *,
        server: Server | None = None,
        python: str | Path = sys.executable,
    ) -> Peer:
        """Return a peer with a new client process for each sample."""
        target = server or self._ours()

        def take(in_flight: int) -> CallSample:
            words = (
                *(kind, target.address, "--pid", str(target.pid)),
                *("--in-flight", str(in_flight), "--seconds", str(_LARGE_SECONDS)),
            )
            return CallSample(**json.loads(_output(python, module, *words)))

        return Peer(name, take)


@contextmanager
def _told(name: str) -> Generator[None]:
    """Report an unavailable peer in one line."""
    try:
        yield
    except MissingPeerError as error:
        say(f"{name}: left out: {error}")


def _output(python: str | Path, module: str, *arguments: str) -> str:
    """Run a module of this package; return its standard output."""
    done = subprocess.run(
        [python, "-m", f"benchmarks.peers.{module}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise MissingPeerError(f"{module} {' '.join(arguments[:1])}: {lines[-1]}")
    return done.stdout


def _range(found: Sequence[float] | None) -> str:
    """Return a median, and the range of several values."""
    if found is None:
        return "-"
    middle, least, largest = found
    if least == largest:
        return f"{middle:.2f}"
    return f"{middle:.2f} ({least:.2f} to {largest:.2f})"


def _print_calls(rows: Rows) -> None:
    print(
        "| in flight | peer | per s | p50 ms | p99 ms | server CPU, ms | client CPU, ms "
        "| rate, ratio | p50, ratio | samples |"
    )
    print("|" + "---|" * 10)
    for row in rows:
        figures = [
            f"{row['rate']:.0f}" if row["rate"] >= 100 else f"{row['rate']:.1f}",
            *(f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms", "server_ms", "client_ms")),
            *(_range(row[name]) for name in ("rate_ratio", "p50_ms_ratio")),
        ]
        cells = [str(row["in_flight"]), row["contestant"], *figures, str(row["samples"])]
        print("| " + " | ".join(cells) + " |")


def _print_local(rows: Rows) -> None:
    print(
        "| gradient | layout | type | PyTorch, ms | shared memory, ms | client.empty, ms "
        "| LocalClient, ms | shared memory, ratio | client.empty, ratio | LocalClient, ratio |"
    )
    print("|" + "---|" * 10)
    for row in rows:
        times = (row[f"{name}_ms"] for name in ("torch", "remote", "placed", "local"))
        figures = ["-" if value is None else f"{value:.1f}" for value in times]
        figures += [_range(row[name]) for name in ("remote_ratio", "placed_ratio", "local_ratio")]
        print("| " + " | ".join([row["mode"], row["layout"], row["dtype"], *figures]) + " |")


def _terminated(number: int, _frame: object) -> None:
    """End as by Ctrl-C, so that servers are ended too."""
    sys.exit(128 + number)


def main(argv: list[str] | None = None) -> int:
    """Set up, measure, print tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rows", default=",".join(_ROWS), help="some of these (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds of each of the rows but local"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--set-up", action="store_true", help="make environments, measure nothing")
    arguments = parser.parse_args(argv)
    names: list[str] = arguments.rows.split(",")
    if unknown := set(names) - set(_ROWS):
        parser.error(f"--rows has {', '.join(sorted(unknown))}; there are {', '.join(_ROWS)}")
    environments = Environments(arguments.environments)
    if arguments.set_up:
        for make in (environments.client, environments.triton):
            with _told(make.__name__):
                make()
        return 0
    signal.signal(signal.SIGTERM, _terminated)
    found: dict[str, Rows] = {}
    for name in names:
        print(f"\n{name}\n", flush=True)
        with ExitStack() as stack, _told(name):
            comparisons = Comparisons(
                environments, stack, rounds=arguments.rounds, limit_s=arguments.limit
            )
            measure: Callable[[], Rows] = getattr(comparisons, name.replace("-", "_"))
            found[name] = measure()
            (_print_local if name == "local" else _print_calls)(found[name])
    machine.write(arguments.json, {"rounds": arguments.rounds, "rows": found})
    return 0 if found else 1
