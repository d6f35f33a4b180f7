"""The peer of the stream benchmark: a grpcio server that returns each chunk and does nothing else.

It speaks the protobuf messages of EvaluateStream, so that one client drives both servers.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from gradwire import v1

_LIMIT = 16 << 20


class Echo:
    """Answers EvaluateStream with opened, then with every chunk as it came."""

    async def evaluate_stream(self, _requests: object, context: Any) -> None:
        """Return what comes."""
        opened = await context.read()
        await context.write(v1.EvaluateStreamResponse(opened=v1.Opened(output=opened.open.input)))
        while (message := await context.read()) is not grpc.aio.EOF:
            chunk = v1.Chunk(offset=message.chunk.offset, data=message.chunk.data)
            await context.write(v1.EvaluateStreamResponse(chunk=chunk))


async def _serve() -> None:
    options = [
        ("grpc.max_receive_message_length", _LIMIT),
        ("grpc.max_send_message_length", _LIMIT),
    ]
    server = grpc.aio.server(options=options)
    handler = grpc.stream_stream_rpc_method_handler(
        Echo().evaluate_stream,
        v1.EvaluateStreamRequest.FromString,
        v1.EvaluateStreamResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "gradwire.v1.GradientService", {"EvaluateStream": handler}
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"bare-server listening on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
