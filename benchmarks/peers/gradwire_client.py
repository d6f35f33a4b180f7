"""Clients of gradwire, with a new process for each sample.

    python -m benchmarks.peers.gradwire_client body ADDRESS FILE
    python -m benchmarks.peers.gradwire_client KIND ADDRESS --pid PID --in-flight N --seconds S

body    writes a small call's HTTP/2 body for h2load, and on stdout the bytes of its response
sdk     Client.evaluate
stream  EvaluateStream with the same messages each time, by grpcio

Triton's samples have processes of their own too. The first result of `sdk` and `body` is compared
with a NumPy reference.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.peers.loops import Call, CallSample, closed_loop, write
from benchmarks.peers.problems import LARGE, SMALL, Shape, gradient, reference, result_shape
from gradwire import Client, ops, tensors, v1
from gradwire._core.options import CHUNK_BYTES

_OPERATOR = ops.TorchUpsampleBackward(mode="bilinear")
_SERVICE = "/gradwire.v1.GradientService"
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


def _method(address: str, name: str) -> Any:
    """Return a method of bytes, over a connection of its own."""
    channel: Any = grpc.insecure_channel(address, options=_OPTIONS)
    kind = channel.stream_stream if name == "EvaluateStream" else channel.unary_unary
    return kind(f"{_SERVICE}/{name}")


def _write_body(address: str, file: Path) -> int:
    """Write a small call's body; return the size of its response.

    The size is in bytes.
    """
    source = gradient(SMALL)
    described = tensors.describe(source)
    body = v1.EvaluateRequest(
        operator=ops.to_message(_OPERATOR),
        input=described,
        output=tensors.result_descriptor(described, result_shape(SMALL)),
        data=source.tobytes(),
    ).SerializeToString()
    file.write_bytes(b"\0" + struct.pack(">I", len(body)) + body)
    response: bytes = _method(address, "Evaluate")(body)
    _check(v1.EvaluateResponse.FromString(response).data, SMALL)
    return len(response)


def _check(data: bytes, shape: Shape) -> None:
    result = np.frombuffer(data, np.float32).reshape(result_shape(shape))
    np.testing.assert_allclose(result, reference(gradient(shape)), atol=1e-5)


def _sdk(address: str) -> Callable[[], Call]:
    """Return a function that gives threads their call.

    All share a client, as the SDK recommends.
    """
    source = gradient(LARGE)
    call = partial(Client(address).evaluate, _OPERATOR, source, output_shape=result_shape(LARGE))
    _check(call().tobytes(), LARGE)
    return lambda: call


def _stream(address: str) -> Call:
    """Return a call that sends the same messages each time.

    It counts the bytes of the response.
    """
    source = gradient(LARGE)
    described = tensors.describe(source)
    result = tensors.result_descriptor(described, result_shape(LARGE))
    header = v1.Open(operator=ops.to_message(_OPERATOR), input=described, output=result)
    messages = [v1.EvaluateStreamRequest(open=header)]
    data, view, at = source.tobytes(), tensors.WireView(source), 0
    while at < len(data):
        stop = view.chunk_stop(at, CHUNK_BYTES)
        messages.append(v1.EvaluateStreamRequest(chunk=v1.Chunk(offset=at, data=data[at:stop])))
        at = stop
    frames = [message.SerializeToString() for message in messages]
    method = _method(address, "EvaluateStream")

    def call() -> None:
        received = sum(map(len, method(iter(frames))))
        if received < len(data) // 4:
            raise RuntimeError(f"{received} bytes of {len(data) // 4} came back")

    return call


def _sampled(arguments: argparse.Namespace) -> CallSample:
    address: str = arguments.address
    make = _sdk(address) if arguments.kind == "sdk" else partial(_stream, address)
    return closed_loop(
        make, server=arguments.pid, in_flight=arguments.in_flight, seconds=arguments.seconds
    )


def main() -> int:
    """Run the kind named by the first argument."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", choices=("body", "sdk", "stream"))
    parser.add_argument("address")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--in-flight", type=int)
    parser.add_argument("--seconds", type=float)
    arguments = parser.parse_args()
    if arguments.kind == "body":
        sys.stdout.write(f"{_write_body(arguments.address, arguments.file)}\n")
    else:
        write(_sampled(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
