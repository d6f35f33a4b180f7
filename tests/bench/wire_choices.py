"""Stages of the wire benchmark by which the server's settings and grpc's options were chosen."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec

from bench import wire_loads
from bench.servers import OURS, Server
from bench.wire_loads import Call, many_at_once
from bench.wire_rounds import (
    BARE,
    CHUNK,
    LARGE,
    LARGE_RESULT,
    TINY,
    TINY_RESULT,
    Rows,
    Take,
    compare,
    compare_calls,
    numbers,
    start,
)

# MiB that the server's malloc keeps.
_KEPT = (0, 16, 64, 256, 1024)

# Given to both ends.
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


def kinds(rounds: int) -> dict[str, Rows]:
    """Compare bare servers of several kinds."""
    request = wire_loads.request_for(numbers(TINY), TINY_RESULT)
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
        calls = {kind: wire_loads.raw_stream(one, source, CHUNK) for kind, one in servers.items()}
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
            calls[name] = wire_loads.raw_stream(servers[name], source, CHUNK, chosen)
        rows = compare_calls(calls, servers, base="grpc's own", rounds=rounds)
    return {"streams": rows}


def chunks(rounds: int) -> dict[str, Rows]:
    """Compare sizes of chunks, sent by the SDK, and of the server's steps."""
    source = numbers(LARGE)
    report: dict[str, Rows] = {}
    with ExitStack() as stack:
        for slab in (1, 2, 4, 8):
            flags = ("--slab-bytes", str(slab << 20), "--max-chunk-bytes", str(4 << 20))
            server = start(stack, *OURS, *flags)
            calls = {
                f"chunks of {chunk} KiB": wire_loads.sdk(
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
        calls = {name: wire_loads.sdk(one, source, LARGE_RESULT) for name, one in servers.items()}
        rows = compare_calls(calls, servers, base="threads: 1", rounds=rounds)
    return {"25.7 MB up, 6.4 MB down": rows}


def malloc(rounds: int) -> dict[str, Rows]:
    """Compare thresholds of the server's malloc."""
    source = numbers(LARGE)
    report: dict[str, Rows] = {}
    for title, shape in (("6.4 MB down", LARGE_RESULT), ("25.7 MB down", LARGE)):
        with ExitStack() as stack:
            servers = {
                f"{kept} MiB kept": start(stack, *OURS, "--malloc-keep-bytes", str(kept << 20))
                for kept in _KEPT
            }
            calls = {name: wire_loads.sdk(one, source, shape) for name, one in servers.items()}
            rows = compare_calls(calls, servers, base="0 MiB kept", rounds=rounds)
        report[f"25.7 MB up, {title}"] = rows
    return report


def _kinds() -> list[str]:
    # Compared with where it is installed.
    return ["aio", "uvloop", "sync"] if find_spec("uvloop") else ["aio", "sync"]
