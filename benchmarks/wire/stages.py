"""The cost of the wire beside bare grpcio servers and local PyTorch.

    python -m benchmarks wire STAGE ... [--rounds N] [--json FILE]

tiny      12 x 64 numbers: latency and rate beside a bare echo of as many bytes
large     25.7 MB up, 6.4 MB down: beside a plain protobuf server around the same compute
identity  25.7 MB up and down on a stream: beside a bare server that returns raw bytes
bidi      67.1 MB up and down on a stream of protobuf's messages: beside a bare bidi server
local     client.evaluate beside PyTorch's own backward on as many cores, where it is installed
kinds     bare servers of other kinds, among themselves
options   bare servers with other options of grpc's core at both ends, among themselves
chunks    streams with other chunks and slabs, among themselves
threads   streams with other numbers of compute threads, among themselves
copies    bytes that the server's process copies for a stream, counted; needs a C compiler
timeline  times at which one stream of `large` sends, computes and receives

Servers run in processes of their own, the client in this one, all on the same cores. Rates are of
calls per second, times in milliseconds, processor time for each call; the last two columns are
ratios to the first contestant in the same round.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec

from benchmarks import machine
from benchmarks.servers import OURS, Server
from benchmarks.wire import loads
from benchmarks.wire.copies import copies
from benchmarks.wire.loads import Call, many_at_once
from benchmarks.wire.rounds import (
    BARE,
    CHUNK,
    LARGE,
    LARGE_RESULT,
    STREAMED,
    STREAMED_RESULT,
    TINY,
    TINY_RESULT,
    Rows,
    Take,
    check_equal,
    compare,
    compare_calls,
    numbers,
    print_rows,
    start,
)
from benchmarks.wire.timeline import timeline

_CONNECTIONS = (1, 4)
_IN_FLIGHT = 16

# Options for both ends.
OPTIONS: dict[str, tuple[tuple[str, int], ...]] = {
    "grpc's own": (),
    "frames of 1 MiB": (("grpc.http2.max_frame_size", 1 << 20),),
    "frames of 16 MiB": (("grpc.http2.max_frame_size", (1 << 24) - 1),),
    "lookahead of 4 MiB": (("grpc.http2.lookahead_bytes", 4 << 20), ("grpc.http2.bdp_probe", 0)),
    "lookahead of 64 MiB": (("grpc.http2.lookahead_bytes", 64 << 20), ("grpc.http2.bdp_probe", 0)),
    "write buffer of 1 MiB": (("grpc.http2.write_buffer_size", 1 << 20),),
    "reads of 1 MiB": (
        ("grpc.experimental.tcp_read_chunk_size", 1 << 20),
        ("grpc.experimental.tcp_min_read_chunk_size", 1 << 20),
        ("grpc.experimental.tcp_max_read_chunk_size", 4 << 20),
    ),
}


def tiny(rounds: int) -> dict[str, Rows]:
    """Measure small unary calls on separate cores.

    Servers run on one core and the client on the others. Left alone, the system now and then lets
    both ends of a connection share one core, for seconds: then rates fall by half for any server.
    """
    cores = sorted(os.sched_getaffinity(0))
    source = numbers(TINY)
    request = loads.request_for(source, TINY_RESULT)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[:1])
        ours, quiet = start(stack, *OURS, "--access-log"), start(stack, *OURS)
        reply = len(loads.unary_bytes(ours, request)())  # type: ignore[arg-type]
        servers = {
            "bare": start(stack, *BARE, "echo", "--reply", str(reply)),
            "ours": ours,
            "ours, no log lines": quiet,
        }
        os.sched_setaffinity(0, cores[1:] or cores)
        calls = {name: loads.unary_bytes(one, request) for name, one in servers.items()}
        calls["ours, client.evaluate"] = loads.sdk(ours, source, TINY_RESULT)
        behind = {**servers, "ours, client.evaluate": ours}
        one = compare_calls(calls, behind, base="bare", rounds=rounds)
        title = f"{len(request)} bytes up, {reply} down; one connection, one in flight"
        return {title: one} | _floods(servers, request, rounds)


def _floods(servers: dict[str, Server], request: bytes, rounds: int) -> dict[str, Rows]:
    report: dict[str, Rows] = {}
    for connections in _CONNECTIONS:
        flood = partial(many_at_once, connections=connections, in_flight=_IN_FLIGHT)
        takes: dict[str, Take] = {
            name: partial(flood, server, request, seconds=0.5) for name, server in servers.items()
        }
        title = f"connections: {connections}, {_IN_FLIGHT} in flight"
        report[title] = compare(takes, base="bare", rounds=rounds)
    return report


def large(rounds: int) -> dict[str, Rows]:
    """Measure large calls; each server has one connection and one caller."""
    source = numbers(LARGE)
    with ExitStack() as stack:
        servers = {
            "protobuf, aio": start(stack, *BARE, "protobuf"),
            "protobuf, sync": start(stack, *BARE, "protobuf", "--kind", "sync"),
            "ours": start(stack, *OURS),
        }
        calls: dict[str, Call] = {
            name: (loads.sdk if name == "ours" else loads.protobuf)(server, source, LARGE_RESULT)
            for name, server in servers.items()
        }
        check_equal(calls)
        rows = compare_calls(calls, servers, base="protobuf, aio", rounds=rounds, seconds=0.6)
    return {"25.7 MB up, 6.4 MB down; one connection, one in flight": rows}


def identity(rounds: int) -> dict[str, Rows]:
    """Measure streams that compute nothing; each has one connection."""
    source = numbers(LARGE)
    with ExitStack() as stack:
        bare, ours = start(stack, *BARE, "raw"), start(stack, *OURS)
        calls: dict[str, Call] = {
            "bare": loads.raw_stream(bare, source, CHUNK),
            "ours": loads.framed_stream(ours, source, CHUNK),
            "ours, client.evaluate": loads.sdk(ours, source, LARGE),
        }
        check_equal(calls)
        behind = {name: bare if name == "bare" else ours for name in calls}
        rows = compare_calls(calls, behind, base="bare", rounds=rounds)
    return {"25.7 MB up and down; one connection, one in flight": rows}


def bidi(rounds: int) -> dict[str, Rows]:
    """Measure streams of a plain client.

    A bidi server that returns protobuf's chunks is the base.
    """
    source = numbers(STREAMED)
    with ExitStack() as stack:
        bare, ours = start(stack, *BARE, "bidi"), start(stack, *OURS, "--backend", "numpy_cpu")

        def stream(server: Server, output_shape: tuple[int, ...]) -> Call:
            opens = server is not bare
            return loads.protobuf_stream(server, source, output_shape, CHUNK, opens=opens)

        calls = {"bare bidi": stream(bare, STREAMED), "ours, identity": stream(ours, STREAMED)}
        check_equal(calls)
        calls["ours, bilinear x2 on NumPy"] = stream(ours, STREAMED_RESULT)
        behind = {name: bare if name == "bare bidi" else ours for name in calls}
        rows = compare_calls(calls, behind, base="bare bidi", rounds=rounds, seconds=1.0)
    return {"67.1 MB up in chunks of 1 MiB; one connection, one in flight": rows}


def kinds(rounds: int) -> dict[str, Rows]:
    """Compare bare servers of several kinds."""
    request = loads.request_for(numbers(TINY), TINY_RESULT)
    report: dict[str, Rows] = {}
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        # As in the stage `tiny`.
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[:1])
        echoes = {
            kind: start(stack, *BARE, "echo", "--reply", "810", "--kind", kind) for kind in _kinds()
        }
        os.sched_setaffinity(0, cores[1:] or cores)
        takes: dict[str, Take] = {
            kind: partial(
                many_at_once,
                echo,
                request,
                connections=4,
                in_flight=16,
                seconds=0.4,
            )
            for kind, echo in echoes.items()
        }
        report["tiny, connections: 4, 16 in flight"] = compare(takes, base="aio", rounds=rounds)
    with ExitStack() as stack:
        servers = {kind: start(stack, *BARE, "raw", "--kind", kind) for kind in _kinds()}
        source = numbers(LARGE)
        calls = {kind: loads.raw_stream(one, source, CHUNK) for kind, one in servers.items()}
        report["streams"] = compare_calls(calls, servers, base="aio", rounds=rounds)
    return report


def options(rounds: int) -> dict[str, Rows]:
    """Compare options of grpc's core, given to both ends."""
    source = numbers(LARGE)
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        calls: dict[str, Call] = {}
        for name, chosen in OPTIONS.items():
            flags = [flag for key, value in chosen for flag in ("--option", f"{key}={value}")]
            servers[name] = start(stack, *BARE, "raw", *flags)
            calls[name] = loads.raw_stream(servers[name], source, CHUNK, chosen)
        rows = compare_calls(calls, servers, base="grpc's own", rounds=rounds)
    return {"streams": rows}


def chunks(rounds: int) -> dict[str, Rows]:
    """Compare sizes of the SDK's chunks and the server's steps."""
    source = numbers(LARGE)
    report: dict[str, Rows] = {}
    with ExitStack() as stack:
        for slab in (1, 2, 4, 8):
            flags = ("--slab-bytes", str(slab << 20), "--max-chunk-bytes", str(4 << 20))
            server = start(stack, *OURS, *flags)
            calls = {
                f"chunks of {chunk} KiB": loads.sdk(
                    server, source, LARGE_RESULT, chunk_bytes=chunk << 10
                )
                for chunk in (256, 512, 1024, 2048, 4096)
            }
            base = "chunks of 1024 KiB"
            rows = compare_calls(calls, server, base=base, rounds=rounds, seconds=0.25)
            report[f"slabs of {slab} MiB"] = rows
    return report


def threads(rounds: int) -> dict[str, Rows]:
    """Compare numbers of compute threads."""
    source = numbers(LARGE)
    with ExitStack() as stack:
        servers = {
            f"threads: {count}": start(stack, *OURS, "--compute-threads", str(count))
            for count in (1, 2, 4)
        }
        calls = {name: loads.sdk(one, source, LARGE_RESULT) for name, one in servers.items()}
        rows = compare_calls(calls, servers, base="threads: 1", rounds=rounds)
    return {"25.7 MB up, 6.4 MB down": rows}


def _kinds() -> list[str]:
    # uvloop is compared if it is installed.
    return ["aio", "uvloop", "sync"] if find_spec("uvloop") else ["aio", "sync"]


_STAGES: dict[str, Callable[[int], dict[str, Rows]]] = {
    "tiny": tiny,
    "large": large,
    "identity": identity,
    "bidi": bidi,
    "kinds": kinds,
    "options": options,
    "chunks": chunks,
    "threads": threads,
}
_TEXTS: dict[str, Callable[[int], str]] = {"copies": lambda _: copies(), "timeline": timeline}


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("wire", __doc__)
    parser.add_argument("stages", nargs="+", choices=[*_STAGES, *_TEXTS], metavar="STAGE")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    report: dict[str, dict[str, Rows]] = {}
    for stage in arguments.stages:
        if stage in _TEXTS:
            sys.stdout.write(_TEXTS[stage](arguments.rounds))
            continue
        report[stage] = _STAGES[stage](arguments.rounds)
        print_rows(report[stage])
    machine.write(arguments.json, {"rounds": arguments.rounds, "medians": report})
    return 0
