"""Triton's clients, in an environment of their own, which has no gradwire.

    python -m benchmarks.peers.triton_client ready ADDRESS
    python -m benchmarks.peers.triton_client body MODEL FILE
    python -m benchmarks.peers.triton_client KIND ADDRESS --pid PID --in-flight N --seconds S

ready   status 0 once every model is ready
body    writes a small call's HTTP/2 body for h2load
raw     the same bytes each time, by grpcio
sdk     tritonclient with tensors in messages
shared  tritonclient with tensors in system shared memory

The first result of each kind is compared with a NumPy reference.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import shared_memory

from benchmarks.peers.loops import closed_loop, write
from benchmarks.peers.problems import LARGE, SMALL, gradient, reference, result_shape
from benchmarks.peers.triton_server import MODELS

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_MODEL = "kernel"


def connected(address):
    """Return a client with a connection of its own."""
    return triton.InferenceServerClient(address, channel_args=_OPTIONS)


def request(model, shape):
    """Return a serialized request."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="GRADIENT", datatype="FP32", shape=shape)
    message.outputs.add(name="RESULT")
    message.raw_input_contents.append(gradient(shape).tobytes())
    return message.SerializeToString()


def check(result, shape):
    """Compare a result with the reference."""
    np.testing.assert_allclose(result, reference(gradient(shape)), atol=1e-5)


def infer(client, shape):
    """Evaluate with tensors in messages."""
    source = triton.InferInput("GRADIENT", shape, "FP32")
    source.set_data_from_numpy(gradient(shape))
    wanted = [triton.InferRequestedOutput("RESULT")]
    return client.infer(_MODEL, [source], outputs=wanted).as_numpy("RESULT")


def raw_call(address, shape):
    """Return a call that sends the same bytes each time.

    It does not decode the response.
    """
    method = grpc.insecure_channel(address, options=_OPTIONS).unary_unary(_METHOD)
    return partial(method, request(_MODEL, shape))


class SharedCall:
    """A call with both tensors in shared memory.

    It copies the source in and the result out.
    """

    def __init__(self, address, shape):
        self._source = gradient(shape)
        self._result_shape = result_shape(shape)
        self._client = connected(address)
        result_bytes = self._source.nbytes // 4
        self._input = self._region("input", self._source.nbytes)
        self._output = self._region("output", result_bytes)
        self._inputs = [triton.InferInput("GRADIENT", shape, "FP32")]
        self._inputs[0].set_shared_memory(self._name("input"), self._source.nbytes)
        self._outputs = [triton.InferRequestedOutput("RESULT")]
        self._outputs[0].set_shared_memory(self._name("output"), result_bytes)
        check(self(), shape)

    def _name(self, end):
        return f"gradwire-peers-{os.getpid()}-{id(self)}-{end}"

    def _region(self, end, size):
        name = self._name(end)
        region = shared_memory.create_shared_memory_region(name, f"/{name}", size)
        self._client.register_system_shared_memory(name, f"/{name}", size)
        return region

    def __call__(self):
        """Evaluate; the result is a copy."""
        shared_memory.set_shared_memory_region(self._input, [self._source])
        self._client.infer(_MODEL, self._inputs, outputs=self._outputs)
        result = shared_memory.get_contents_as_numpy(self._output, np.float32, self._result_shape)
        return result.copy()

    def close(self):
        """Give the shared memory back."""
        for end, region in (("input", self._input), ("output", self._output)):
            self._client.unregister_system_shared_memory(self._name(end))
            shared_memory.destroy_shared_memory_region(region)


def sampled(arguments):
    """Return a sample of large calls."""
    address, opened = arguments.address, []
    check(infer(connected(address), LARGE), LARGE)

    def make():
        if arguments.kind == "raw":
            return raw_call(address, LARGE)
        if arguments.kind == "sdk":
            return partial(infer, connected(address), LARGE)
        opened.append(SharedCall(address, LARGE))
        return opened[-1]

    try:
        return closed_loop(
            make,
            server=arguments.pid,
            in_flight=arguments.in_flight,
            seconds=arguments.seconds,
        )
    finally:
        for call in opened:
            call.close()


def ready(address):
    """Return whether every model is ready."""
    client = connected(address)
    try:
        return client.is_server_ready() and all(map(client.is_model_ready, MODELS))
    except triton.InferenceServerException:
        return False


def main():
    """Run the kind named by the first argument."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", choices=("ready", "body", "raw", "sdk", "shared"))
    parser.add_argument("address", help="HOST:PORT; of body the model")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--in-flight", type=int)
    parser.add_argument("--seconds", type=float)
    arguments = parser.parse_args()
    if arguments.kind == "ready":
        return 0 if ready(arguments.address) else 1
    if arguments.kind == "body":
        body = request(arguments.address, SMALL)
        arguments.file.write_bytes(b"\0" + struct.pack(">I", len(body)) + body)
        return 0
    write(sampled(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
