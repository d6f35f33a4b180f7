"""Stages of the wire benchmark that tell how far the server is from what could be had."""

from __future__ import annotations

import importlib
import os
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from bench import peers, wire_loads
from bench.cases import Case, Outputs, gradients
from bench.contestants import Gradient
from bench.servers import OURS, Server
from bench.wire_loads import Call, many_at_once
from bench.wire_rounds import (
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
    start,
)
from gradwire import Client

_CONNECTIONS = (1, 4)
_IN_FLIGHT = 16
_LOCAL_THREADS = 2
# Of the bytes that go up, 25 MB and more.
_LOCAL_CASES = (
    Case("trilinear x2", "linear", (2, 16, 16, 40, 40), (2, 16, 32, 80, 80)),
    Case("bicubic x2", "cubic", (8, 64, 56, 56), (8, 64, 112, 112)),
    Case("bilinear x2", "linear", (8, 64, 56, 56), (8, 64, 112, 112)),
)


def tiny(rounds: int) -> dict[str, Rows]:
    """Measure small unary calls, servers on one core and the client on the others.

    Left alone, the system now and then lets both ends of a connection share one core, for seconds:
    then rates fall by half, whoever serves.
    """
    cores = sorted(os.sched_getaffinity(0))
    source = numbers(TINY)
    request = wire_loads.request_for(source, TINY_RESULT)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[:1])
        ours, quiet = start(stack, *OURS), start(stack, *OURS, "--log-level", "warning")
        reply = len(wire_loads.unary_bytes(ours, request)())  # type: ignore[arg-type]
        servers = {
            "bare": start(stack, *BARE, "echo", "--reply", str(reply)),
            "ours": ours,
            "ours, no log lines": quiet,
        }
        os.sched_setaffinity(0, cores[1:] or cores)
        calls = {name: wire_loads.unary_bytes(one, request) for name, one in servers.items()}
        calls["ours, client.evaluate"] = wire_loads.sdk(ours, source, TINY_RESULT)
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
            name: (wire_loads.sdk if name == "ours" else wire_loads.protobuf)(
                server, source, LARGE_RESULT
            )
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
            "bare": wire_loads.raw_stream(bare, source, CHUNK),
            "ours": wire_loads.framed_stream(ours, source, CHUNK),
            "ours, client.evaluate": wire_loads.sdk(ours, source, LARGE),
        }
        check_equal(calls)
        behind = {name: bare if name == "bare" else ours for name in calls}
        rows = compare_calls(calls, behind, base="bare", rounds=rounds)
    return {"25.7 MB up and down; one connection, one in flight": rows}


def bidi(rounds: int) -> dict[str, Rows]:
    """Measure streams of a plain client, beside a bidi server that returns protobuf's chunks."""
    source = numbers(STREAMED)
    with ExitStack() as stack:
        bare, ours = start(stack, *BARE, "bidi"), start(stack, *OURS, "--backend", "numpy_cpu")

        def stream(server: Server, output_shape: tuple[int, ...]) -> Call:
            opens = server is not bare
            return wire_loads.protobuf_stream(server, source, output_shape, CHUNK, opens=opens)

        calls = {"bare bidi": stream(bare, STREAMED), "ours, identity": stream(ours, STREAMED)}
        check_equal(calls)
        calls["ours, bilinear x2 on NumPy"] = stream(ours, STREAMED_RESULT)
        behind = {name: bare if name == "bare bidi" else ours for name in calls}
        rows = compare_calls(calls, behind, base="bare bidi", rounds=rounds, seconds=1.0)
    return {"67.1 MB up in chunks of 1 MiB; one connection, one in flight": rows}


def local(rounds: int) -> dict[str, Rows]:
    """Compare client.evaluate with PyTorch's backward on the spot; both write a given array."""
    return {case.name: _local(case, rounds) for case in _LOCAL_CASES}


def _local(case: Case, rounds: int) -> Rows:
    importlib.import_module("torch")
    x = gradients(case, np.dtype(np.float32), layouts=("NCX",))["NCX"]
    given = Gradient(case=case, layout="NCX", x=x, threads=_LOCAL_THREADS, outputs=Outputs())
    torch = peers.torch_peer(given)
    out = given.output("ours")
    with ExitStack() as stack:
        cubic = ("-m", "bench.cubic_server", *OURS[2:])
        server = start(stack, *(cubic if case.kind == "cubic" else OURS))
        client = stack.enter_context(Client(server.address))
        evaluate = partial(client.evaluate, wire_loads.OPERATOR, x, output_shape=out.shape, out=out)
        calls: dict[str, Call] = {"torch": torch.run, "client.evaluate": evaluate}
        for call in calls.values():
            call()
        found: Any = torch.result
        np.testing.assert_allclose(out, found, rtol=1e-4, atol=1e-4)
        servers = {"client.evaluate": server}
        return compare_calls(calls, servers, base="torch", rounds=rounds, seconds=0.5)
