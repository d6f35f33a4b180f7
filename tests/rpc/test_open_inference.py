"""The Open Inference Protocol has Evaluate's bits, limits and refusals."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, json_format

from gradwire import Client, ops
from gradwire_server.rpc.interceptors import INSPECTING
from gradwire_server.rpc.open_inference import service
from gradwire_server.rpc.open_inference.descriptors import NAME, SERVICE, message
from support import inference_calls
from support.inference_calls import RESULT_SHAPE, SHAPE, InferenceClient, gradient, infer_request
from support.raw_calls import RawClient, bearer, call, refusal_of, refused
from support.servers import serving, wait_idle

OPERATOR = "torch_upsample_backward"
UPSAMPLE = ops.TorchUpsampleBackward(mode="bilinear")
FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is
PREFIX = f"gradwire-test-{os.getpid()}-"
INVALID = "INVALID_ARGUMENT"
REGISTER = "SystemSharedMemoryRegister"


@pytest.fixture(scope="module")
def server():
    with serving(model=inference_calls.MODEL, open_inference_memory=f"{PREFIX}*") as server:
        yield server


@pytest.fixture
def client(server):
    with InferenceClient(server.address) as client:
        yield client
        assert client.call("ServerLive").live
    wait_idle(server)


@pytest.fixture(scope="module")
def evaluated(server):
    """Return the bytes of what Client.evaluate has for a tensor, a shape and an operator."""
    with Client(server.address) as client:
        yield lambda x, shape=RESULT_SHAPE, operator=UPSAMPLE: client.evaluate(
            operator, x, output_shape=shape
        ).tobytes()


@pytest.mark.parametrize("datatype", inference_calls.DTYPES)
def test_bits_of_every_type(client, evaluated, datatype):
    x = gradient().astype(inference_calls.DTYPES[datatype])
    request = infer_request(
        x, model=OPERATOR, datatype=datatype, mode="bilinear", output_shape=str(list(RESULT_SHAPE))
    )
    request.id = "mine"
    raw = request.SerializeToString()
    if datatype in {"FP32", "FP64"}:  # which have typed contents too
        request.ClearField("raw_input_contents")
        typed = getattr(request.inputs[0].contents, f"{datatype.lower()}_contents")
        typed.extend(x.reshape(-1).tolist())
    for each in (raw, request.SerializeToString(), raw):  # the last one finds the header
        reply = client.call("ModelInfer", each)
        assert reply.raw_output_contents == [evaluated(x)]
        (tensor,) = reply.outputs
        assert (tensor.name, tensor.datatype, tuple(tensor.shape)) == ("y", datatype, RESULT_SHAPE)
        assert (reply.model_name, reply.model_version, reply.id) == (OPERATOR, "1", "mine")


def test_an_output_shape_may_be_a_tensor(client, evaluated):
    # Both contents have 32 bytes: taken for each other, they would give other bits.
    x = gradient((1, 1, 2, 4))
    for sizes in ((1, 1, 1, 2), (1, 1, 2, 2), (1, 1, 1, 2)):
        request = infer_request(model=OPERATOR, mode="bilinear")
        request.inputs.add(name="output_shape", datatype="INT64", shape=[4])
        request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        request.raw_input_contents.extend([np.array(sizes, "<i8").tobytes(), x.tobytes()])
        assert client.call("ModelInfer", request).raw_output_contents == [evaluated(x, sizes)]


def test_parameters_are_json_or_native(client):
    x = gradient((1, 8, 8, 3))
    native = infer_request(x, model="tf_resize", kind="bilinear", align_corners=True, size="[4, 4]")
    text = infer_request(
        x, model="tf_resize", kind='"bilinear"', align_corners="true", size="[4,4]", priority=1
    )
    text.parameters["sequence_id"].int64_param = 7
    text.parameters["triton_enable_empty_final_response"].bool_param = True
    first, second = (client.call("ModelInfer", each) for each in (native, text))
    assert first.raw_output_contents == second.raw_output_contents


def test_a_named_model_needs_no_parameters(client, evaluated):
    reply = client.call("ModelInfer", infer_request(gradient()))
    assert (reply.model_name, reply.raw_output_contents) == ("up", [evaluated(gradient())])
    told = client.call("ModelMetadata", name="up")
    assert [tuple(each.shape) for each in (*told.inputs, *told.outputs)] == [SHAPE, RESULT_SHAPE]
    config = client.call("ModelConfig", name="up").config
    assert (config.max_batch_size, tuple(config.input[0].dims)) == (0, SHAPE)


def parameters(**given):
    """Return fields of a request or tensor with these parameters."""
    kinds = {str: "string_param", int: "int64_param"}
    make = message("InferParameter")
    typed = {name: make(**{kinds[type(value)]: value}) for name, value in given.items()}
    return {"parameters": typed}


def upsample(**given):
    return {"model_name": OPERATOR, **parameters(mode="bilinear", **given)}


def result_in(**given):
    return {"outputs": [{"name": "y", **parameters(**given)}]}


X = {"name": "x", "datatype": "FP32", "shape": SHAPE}
SIZES = {"name": "output_shape", "datatype": "INT64", "shape": [100]}
TWO = {"inputs": [X, SIZES], "raw_input_contents": [bytes(49152), bytes(800)]}
# More than a message may have.
HUGE = {
    "model_name": "dml_resample",
    "inputs": [X | {"shape": [1, 1, 2, 2]}],
    "raw_input_contents": [bytes(16)],
    **parameters(
        interpolation_mode="linear", scales="[1, 1, 1100, 1100]", output_shape="[1, 1, 2200, 2200]"
    ),
}
# Words of the message, and fields in place of those of a sound request.
WRONG = [
    ("model_name: 'nope' is not a model", {"model_name": "nope"}),
    ("model_name: ''", {"model_name": ""}),
    ("model_version: up has no version '9'", {"model_version": "9"}),
    ("parameters.moode", parameters(moode="x")),
    ("parameters.cls", parameters(cls=1)),  # Python's
    ("parameters.mode: is 'best'", parameters(mode="best")),
    ("parameters.size", parameters(size="[" * 9000)),
    ("max_header_bytes", parameters(parameter="x" * (17 << 10))),
    ("inputs: x, z; x is needed", {"inputs": [X, X | {"name": "z"}]}),
    ("inputs: none; x is needed", {"inputs": [], "raw_input_contents": []}),
    ("inputs.x", {"inputs": [X | {"contents": {"fp32_contents": [1.0]}}]}),
    ("raw_input_contents: 0 given; one is needed", {"raw_input_contents": []}),
    ("inputs.x.datatype: 'INT8'", {"inputs": [X | {"datatype": "INT8"}]}),
    ("up takes FP32", {"inputs": [X | {"datatype": "FP64"}]}),
    ("inputs.x.shape", {"inputs": [X | {"shape": [1, 3, 64, 63]}]}),
    ("outputs: z; y is the only one", {"outputs": [{"name": "z"}]}),
    ("outputs.y.parameters.classification", result_in(classification=1)),
    ("request_id", {"id": "x" * 200}),
    ("output_shape: is missing", upsample()),
    ("parameters.output_shape: is an input too", upsample(output_shape="[1, 3, 32, 32]") | TWO),
    ("output_shape", upsample(output_shape="[1, 3]")),
    ("output_shape: 'abc'; a list of sizes", upsample(output_shape="abc")),
    ("output_shape", upsample(output_shape="[1, 3, 32, -1]")),
    ("output", upsample(output_shape="[1, 3, 1000000000, 1000000000]")),
    ("shared_memory_offset: '1'", result_in(shared_memory_region="in", shared_memory_offset="1")),
    ("outputs.y.parameters.shared_memory_region: 1", result_in(shared_memory_region=1)),
    ("INT64 of shape [axes], at most 8, is needed", TWO),
    ("outputs.y is 19360000 bytes", HUGE),
]


def test_wrong_requests_are_refused_by_name(client):
    sound = {"model_name": "up", "inputs": [X], "raw_input_contents": [gradient().tobytes()]}
    for words, changes in WRONG:
        status, text = client.refused("ModelInfer", **{**sound, **changes})
        assert words in text
        assert status == ("NOT_FOUND" if words.startswith("model_") else INVALID), words


def test_bytes_of_another_size_or_of_no_message_are_refused(client):
    raw = gradient().tobytes()
    for wrong in (raw + b"x", raw[:-1]):
        request = infer_request(gradient())
        request.raw_input_contents[0] = wrong
        for _ in range(2):  # the second one finds the header
            assert client.refused("ModelInfer", request) == (
                INVALID,
                f"inputs.x: {len(wrong)} bytes; input's descriptor takes {len(raw)}",
            )
        client.call("ModelInfer", infer_request(gradient()))
    assert "max_header_bytes" in client.refused("ModelInfer", b"\x0a\x00" * (1 << 20))[1]
    assert client.refused("ModelInfer", b"\x0a\xff")[0] == INVALID
    assert client.refused("ModelMetadata", b"\x0a" * 3)[0] == INVALID


def test_a_stream_goes_on_after_errors(client, evaluated):
    requests = [infer_request(gradient()) for _ in range(4)]
    requests[1].model_name = "nope"
    for number, each in enumerate(requests):
        each.id = str(number)
    replies = client.stream(requests)
    assert [each.infer_response.id for each in replies] == ["0", "", "2", "3"]
    assert "model_name: 'nope'" in replies[1].error_message
    assert replies[3].infer_response.raw_output_contents == [evaluated(gradient())]


def test_health_metadata_and_index_are_told_and_no_more_is_served(client):
    assert client.call("ServerReady").ready
    assert client.call("ModelReady", name="up", version="1").ready
    assert client.refused("ModelReady", name="nope")[0] == "NOT_FOUND"
    assert "system_shared_memory" in client.call("ServerMetadata").extensions
    names = {each.name for each in client.call("RepositoryIndex").models}
    assert names == {*ops.OPERATORS, "up"}
    for name, kind in ops.OPERATORS.items():
        (x,) = client.call("ModelMetadata", name=name).inputs
        assert kind.min_rank <= len(x.shape) <= kind.max_rank
    for method in ("RepositoryModelLoad", "TraceSetting", "CudaSharedMemoryRegister"):
        assert client.refused(method)[0] == "UNIMPLEMENTED"


@contextmanager
def shared_file(data, name="x"):
    """Make a file of POSIX shared memory."""
    path = FOLDER / f"{PREFIX}{name}"
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink()


@contextmanager
def registered(client, data):
    """Register a file of shared memory as the region "in" until the block ends."""
    with shared_file(data) as path:
        client.call(REGISTER, name="in", key=path.name, byte_size=len(data))
        yield path
        client.call("SystemSharedMemoryUnregister")


def shared_request(nbytes, *, result_bytes=0, **fields):
    """Ask for the result of what the region begins with, right behind it if its length is given."""
    place = {"shared_memory_region": "in", "shared_memory_byte_size": nbytes}
    fields = {"model_name": "up", "inputs": [X | parameters(**place)], **fields}
    if result_bytes:
        place["shared_memory_byte_size"] = result_bytes
        fields |= result_in(**place, shared_memory_offset=nbytes)
    return message("ModelInferRequest")(**fields)


def test_shared_memory_is_read_and_written(client, evaluated):
    x, result = gradient(), evaluated(gradient())
    data = x.tobytes() + bytes(len(result))
    with registered(client, data) as file:
        for _ in range(2):
            reply = client.call("ModelInfer", shared_request(x.nbytes))
            assert reply.raw_output_contents == [result]
        request = shared_request(x.nbytes, result_bytes=len(result))
        offset = request.outputs[0].parameters["shared_memory_offset"]
        for kind in ("int64_param", "uint64_param"):
            file.write_bytes(data)
            setattr(offset, kind, x.nbytes)
            assert client.call("ModelInfer", request).raw_output_contents == [b""]
            assert file.read_bytes() == x.tobytes() + result
        offset.uint64_param = 2**64 - 1
        assert "shared_memory_offset" in client.refused("ModelInfer", request)[1]
        regions = client.call("SystemSharedMemoryStatus").regions
        assert (regions["in"].key, regions["in"].byte_size) == (file.name, len(data))
        client.call("SystemSharedMemoryUnregister", name="in")
        assert "not registered" in client.refused("ModelInfer", shared_request(x.nbytes))[1]


@pytest.mark.parametrize("operator", ["dml_resample_grad", "dml_resample"])
@pytest.mark.parametrize("place", ["behind", "same region", "over", "unaligned", "elsewhere"])
def test_large_tensors_in_shared_memory_have_the_bits_of_evaluate(
    client, evaluated, operator, place
):
    x, sizes = gradient((5, 7, 320, 240)), (5, 6, 111, 480)
    kind = ops.OPERATORS[operator]
    result = evaluated(x, sizes, kind(interpolation_mode="linear"))
    given = parameters(interpolation_mode="linear", output_shape=str(list(sizes)))
    request = shared_request(x.nbytes, result_bytes=len(result), model_name=operator, **given)
    request.inputs[0].shape[:] = x.shape
    wanted = request.outputs[0].parameters
    wanted["shared_memory_region"].string_param = "in" if place == "same region" else "out"
    offset = {"over": 0, "unaligned": x.nbytes + 4, "elsewhere": 0}.get(place, x.nbytes)
    wanted["shared_memory_offset"].int64_param = offset
    with (
        registered(client, x.tobytes() + bytes(len(result) + 4)) as file,
        shared_file(bytes(len(result)), "out") as other,
    ):
        target = other if place == "elsewhere" else file
        # By another spelling of its name, and mapped once more.
        key, size = f"/{target.name}", target.stat().st_size
        client.call(REGISTER, name="out", key=key, byte_size=size)
        client.call("ModelInfer", request)
        assert target.read_bytes()[offset : offset + len(result)] == result


def test_a_file_that_shrinks_ends_the_call(client, evaluated):
    nbytes, result_bytes = gradient().nbytes, len(evaluated(gradient()))
    request = shared_request(nbytes, result_bytes=result_bytes)
    for length in (0, nbytes // 2, nbytes):
        with registered(client, bytes(nbytes + result_bytes)) as file:
            os.truncate(file, length)
            for _ in range(2):
                status, text = client.refused("ModelInfer", request)
                assert (status, "has become shorter" in text) == (INVALID, True), text
                assert file.stat().st_size == length


def test_a_file_that_shrinks_amid_calls(client, evaluated):
    x, sizes = gradient((4, 8, 256, 256)), (4, 8, 128, 128)
    result = evaluated(x, sizes)
    request = shared_request(x.nbytes, **upsample(output_shape=str(list(sizes))))
    request.inputs[0].shape[:] = x.shape

    def cut_after(delay_us, path):
        time.sleep(delay_us / 1e6)
        os.truncate(path, 0)

    refusals = set()
    with ThreadPoolExecutor(1) as pool:
        for delay_us in range(0, 4000, 100):
            with registered(client, x.tobytes()) as file:
                cut = pool.submit(cut_after, delay_us, file)
                try:
                    assert client.call("ModelInfer", request).raw_output_contents == [result]
                except grpc.RpcError as error:
                    refusals.add(refusal_of(error).code)
                cut.result()
    assert refusals == {grpc.StatusCode.INVALID_ARGUMENT}


def test_ranges_outside_a_region_are_refused(client):
    with shared_file(bytes(100)) as file:
        register = {"name": "in", "key": file.name}
        for fields in ({"byte_size": 101}, {"byte_size": 2**64 - 1, "offset": 2}, {"byte_size": 0}):
            assert client.refused(REGISTER, **register, **fields)[0] == INVALID
        client.call(REGISTER, **register, byte_size=100)
        assert "registered" in client.refused(REGISTER, **register, byte_size=100)[1]
        assert client.refused("ModelInfer", shared_request(4 * 3 * 64 * 64)) == (
            INVALID,
            "inputs.x: 49152 bytes from offset 0 of shared memory region 'in', which has 100",
        )
        assert "descriptor takes" in client.refused("ModelInfer", shared_request(10))[1]
        client.call("SystemSharedMemoryUnregister")


def test_names_that_the_operator_did_not_allow_are_refused(client):
    def refusal(key):
        status, text = client.refused(REGISTER, name="in", key=key, byte_size=1)
        assert status == INVALID
        return text.replace(key, "") if key else text

    with shared_file(b"", "link") as link, shared_file(b"", "fifo") as fifo:
        link.unlink()
        link.symlink_to("/etc/passwd")
        fifo.unlink()
        os.mkfifo(fifo)
        # It does not tell which files there are.
        assert len({refusal(key) for key in (link.name, fifo.name, f"{PREFIX}absent")}) == 1
    for key in ("other", "/etc/passwd", f"{PREFIX}/../../etc/passwd", "", "..", "\0"):
        refusal(key)


def test_shared_memory_is_off_unless_its_names_are_given_and_all_of_it_where_told():
    with serving() as server, InferenceClient(server.address) as client:
        status, text = client.refused(REGISTER, name="a", key="a", byte_size=1)
        assert (status, "--open-inference-memory" in text) == ("UNIMPLEMENTED", True)
        client.call("SystemSharedMemoryUnregister")
        client.call("CudaSharedMemoryUnregister")
    with serving(open_inference="off") as server, InferenceClient(server.address) as client:
        assert client.refused("ServerLive")[0] == "UNIMPLEMENTED"


def test_no_region_for_strangers(client, monkeypatch):
    x = gradient()
    methods = ("Register", "Status", "Unregister")
    with registered(client, x.tobytes()):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(service, "is_local", lambda _peer: False)
            refused = [client.refused(f"SystemSharedMemory{method}") for method in methods]
            refused.append(client.refused("ModelInfer", shared_request(x.nbytes)))
            client.call("ModelInfer", infer_request(x))
        assert {status for status, _ in refused} == {"UNIMPLEMENTED"}
        client.call("ModelInfer", shared_request(x.nbytes))


def test_every_method_has_a_scope_and_tokens_are_asked_for(tmp_path):
    (tmp_path / "tokens").write_text("# nobody\n")
    methods = {f"/{NAME}/{each.name}" for each in SERVICE.methods}
    inspecting = {"ServerMetadata", "ModelStatistics", "SystemSharedMemoryStatus"}
    assert methods & INSPECTING == {f"/{NAME}/{each}" for each in inspecting}
    with serving(tokens=f"{tmp_path}/tokens") as server, RawClient(server.address) as client:
        for method in methods:
            _, refusal = call(client.channel, method, (b"",), bearer("gradwire-nobody"))
            refused(refusal, "UNAUTHENTICATED")


def test_the_requests_of_the_page_to_grpcurl_are_answered(client):
    page = (Path(__file__).parents[2] / "docs" / "open-inference.md").read_text(encoding="utf-8")
    lines = re.findall(r"grpcurl -plaintext -d '(.*)' \S+ ([\w.]+)/(\w+)$", page, re.MULTILINE)
    replies = {}
    for text, name, method in lines:
        assert name == NAME
        kind = message(SERVICE.methods_by_name[method].input_type.name)
        replies[method] = client.call(method, json_format.Parse(text, kind()))
    assert replies["ModelMetadata"].name == OPERATOR
    result = np.array([1, 1.25, 1.75, 2], np.float32).tobytes()
    assert replies["ModelInfer"].raw_output_contents == [result]


def test_messages_are_in_no_default_pool():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferResponse")
