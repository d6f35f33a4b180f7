"""Bare grpcio servers, the peers of the wire benchmark.

    python -m benchmarks.wire.bare_server WHAT [--kind aio|uvloop|sync] [--option NAME=INTEGER]

echo      Evaluate on bytes: the first --reply of them come back
raw       EvaluateStream on bytes: every message comes back
bidi      the same in protobuf's messages, on aio: every chunk comes back
protobuf  Evaluate as a plain server has it: protobuf's messages around LocalClient
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any, cast

import grpc
import numpy as np

from gradwire import ops, v1
from gradwire_server import LocalClient

_SERVICE = "gradwire.v1.GradientService"
_THREADS = 4


def _echo(reply: int, request: bytes, _context: object) -> bytes:
    return request[:reply]


async def _echo_aio(reply: int, request: bytes, _context: object) -> bytes:
    return request[:reply]


def _raw(requests: Iterator[bytes], _context: object) -> Iterator[bytes]:
    yield from requests


async def _raw_aio(_requests: object, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def _bidi_aio(_requests: object, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(v1.EvaluateStreamResponse(chunk=message.chunk))


def _evaluate(
    client: LocalClient, request: v1.EvaluateRequest, _context: object
) -> v1.EvaluateResponse:
    source = np.frombuffer(request.data, np.float32).reshape(tuple(request.input.sizes))
    operator = ops.from_message(request.operator)
    result = client.evaluate(operator, source, output_shape=tuple(request.output.sizes))
    return v1.EvaluateResponse(
        request_id=request.request_id, output=request.output, data=result.tobytes()
    )


async def _evaluate_aio(
    client: LocalClient, pool: ThreadPoolExecutor, request: v1.EvaluateRequest, context: object
) -> v1.EvaluateResponse:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, _evaluate, client, request, context)


def _handlers(arguments: argparse.Namespace) -> tuple[grpc.GenericRpcHandler, ...]:
    sync = arguments.kind == "sync"
    handler: Any
    if arguments.what == "raw":
        raw: Any = _raw if sync else _raw_aio
        method, handler = "EvaluateStream", cast("Any", grpc.stream_stream_rpc_method_handler)(raw)
    elif arguments.what == "bidi":
        bidi: Any = _bidi_aio
        method, handler = (
            "EvaluateStream",
            grpc.stream_stream_rpc_method_handler(
                bidi,
                v1.EvaluateStreamRequest.FromString,
                v1.EvaluateStreamResponse.SerializeToString,
            ),
        )
    elif arguments.what == "echo":
        echo: Any = partial(_echo if sync else _echo_aio, arguments.reply)
        method, handler = "Evaluate", cast("Any", grpc.unary_unary_rpc_method_handler)(echo)
    else:
        client = LocalClient()
        pool = ThreadPoolExecutor(_THREADS)
        evaluate: Any = partial(_evaluate, client) if sync else partial(_evaluate_aio, client, pool)
        method, handler = (
            "Evaluate",
            grpc.unary_unary_rpc_method_handler(
                evaluate, v1.EvaluateRequest.FromString, v1.EvaluateResponse.SerializeToString
            ),
        )
    return (grpc.method_handlers_generic_handler(_SERVICE, {method: handler}),)


def _announce(port: int) -> None:
    sys.stdout.write(f"bare-server listening on 127.0.0.1:{port}\n")
    sys.stdout.flush()


def _serve_sync(arguments: argparse.Namespace, options: list[tuple[str, Any]]) -> None:
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=options)
    server.add_generic_rpc_handlers(_handlers(arguments))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _announce(port)
    server.wait_for_termination()


async def _serve_aio(arguments: argparse.Namespace, options: list[tuple[str, Any]]) -> None:
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(_handlers(arguments))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _announce(port)
    await server.wait_for_termination()


def option(text: str) -> tuple[str, Any]:
    """Read an option of grpc's core."""
    name, _, value = text.partition("=")
    return name, int(value)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("echo", "raw", "bidi", "protobuf"))
    parser.add_argument("--kind", choices=("aio", "uvloop", "sync"), default="aio")
    parser.add_argument("--reply", type=int, default=0)
    parser.add_argument("--option", type=option, action="append", default=[])
    arguments = parser.parse_args()
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        *arguments.option,
    ]
    if arguments.kind == "sync":
        _serve_sync(arguments, options)
    elif arguments.kind == "uvloop":
        uvloop: Any = import_module("uvloop")
        uvloop.run(_serve_aio(arguments, options))
    else:
        asyncio.run(_serve_aio(arguments, options))


if __name__ == "__main__":
    main()
