"""tritonclient, unmodified and in the server's process: Evaluate's bits."""

import io
import os
import queue
import re
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from gradwire import Client, ops
from gradwire_server.rpc.open_inference.descriptors import SERVICE, message
from support.inference_calls import DTYPES, MODEL, RESULT_SHAPE, SHAPE, gradient
from support.servers import serving

triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
shared_memory = pytest.importorskip("tritonclient.utils.shared_memory")
PATTERN = f"gradwire-triton-{os.getpid()}-*"


@pytest.fixture(scope="module")
def server():
    with serving(model=MODEL, open_inference_memory=PATTERN, warm_up=True) as server:
        yield server


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def result(server):
    with Client(server.address) as client:
        operator = ops.TorchUpsampleBackward(mode="bilinear")
        return client.evaluate(operator, gradient(), output_shape=RESULT_SHAPE).tobytes()


def tensor(x, datatype="FP32"):
    made = triton.InferInput("x", list(x.shape), datatype)
    made.set_data_from_numpy(x)
    return made


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "FP64"])
def test_infer(client, result, datatype):
    x = gradient().astype(DTYPES[datatype])
    given = {"mode": "bilinear", "output_shape": "[1, 3, 32, 32]", "antialias": False}
    options = {"parameters": given, "request_id": "a"}
    reply = client.infer("torch_upsample_backward", [tensor(x, datatype)], **options)
    y = reply.as_numpy("y")
    assert (y.dtype, y.shape) == (x.dtype, RESULT_SHAPE)
    assert reply.get_response().id == "a"
    wanted = [triton.InferRequestedOutput("y")]
    for options in ({"client_timeout": 10.0}, {"compression_algorithm": "gzip"}, {"priority": 1}):
        reply = client.infer("up", [tensor(gradient())], outputs=wanted, **options)
        assert reply.as_numpy("y").tobytes() == result


def test_callbacks_and_streams(client, result):
    ended = queue.SimpleQueue()

    def note(result, error):
        ended.put((result, error))

    for _ in range(8):
        client.async_infer("up", [tensor(gradient())], callback=note)
    for _ in range(8):
        reply, error = ended.get(timeout=30)
        assert error is None, str(error)
        assert reply.as_numpy("y").tobytes() == result
    client.start_stream(callback=note)
    for model in ("up", "nope", "up"):
        client.async_stream_infer(model, [tensor(gradient())])
    replies = [ended.get(timeout=30) for _ in range(3)]
    client.stop_stream()
    assert [reply.as_numpy("y").tobytes() for reply, _ in replies[::2]] == [result, result]
    assert "'nope' is not a model" in str(replies[1][1])


def test_system_shared_memory(client, result):
    x, names = gradient(), [PATTERN.replace("*", end) for end in ("in", "out")]
    sizes = (x.nbytes, len(result))
    regions = []
    try:
        for name, size in zip(names, sizes, strict=True):
            regions.append(shared_memory.create_shared_memory_region(name, f"/{name}", size))
            client.register_system_shared_memory(name, f"/{name}", size)
        shared_memory.set_shared_memory_region(regions[0], [x])
        source = triton.InferInput("x", list(SHAPE), "FP32")
        wanted = triton.InferRequestedOutput("y")
        source.set_shared_memory(names[0], sizes[0])
        wanted.set_shared_memory(names[1], sizes[1])
        client.infer("up", [source], outputs=[wanted])
        found = shared_memory.get_contents_as_numpy(regions[1], np.float32, RESULT_SHAPE)
        assert found.tobytes() == result
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
    finally:
        for region in regions:
            shared_memory.destroy_shared_memory_region(region)


def messages(every, prefix=""):
    for each in every:
        fields = [(one.name, one.number, one.type, one.label, one.type_name) for one in each.field]
        yield prefix + each.name, set(fields)
        yield from messages(each.nested_type, f"{prefix}{each.name}.")


def test_descriptors_are_those_of_the_client():
    theirs, ours = FileDescriptorProto(), FileDescriptorProto()
    triton.service_pb2.DESCRIPTOR.CopyToProto(theirs)
    SERVICE.file.CopyToProto(ours)
    assert dict(messages(ours.message_type)) == dict(messages(theirs.message_type))
    for described in (ours, theirs):
        for method in described.service[0].method:
            method.ClearField("options")  # of their generator, empty
    assert ours.service == theirs.service
    # Of the configuration ours has a part, with the same numbers.
    triton.model_config_pb2.DESCRIPTOR.CopyToProto(theirs)
    message("ModelConfig").DESCRIPTOR.file.CopyToProto(ours)
    every = dict(messages(theirs.message_type))
    for name, fields in messages(ours.message_type):
        assert fields <= every[name]
    assert list(ours.enum_type) == list(theirs.enum_type)


def test_the_example_of_the_page_runs(server):
    page = (Path(__file__).parents[2] / "docs" / "open-inference.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(example.replace("127.0.0.1:50051", server.address), {})  # noqa: S102 - our own page
    assert printed.getvalue() == f"{RESULT_SHAPE}\n"
