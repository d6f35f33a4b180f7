"""buf: what breaks released clients, and a generic tool that knows nothing but reflection."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from gradwire import ops
from support.raw_calls import PUBLISHED_GRADIENT, PUBLISHED_RESULT
from support.servers import serving

ROOT = Path(__file__).parents[2]
IMAGES = sorted(
    (ROOT / "proto/released").glob("*.binpb"),
    key=lambda image: [int(number) for number in image.stem[1:].split(".")],
)


run = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=60)


def breaking(buf, proto, *more):
    """Run the comparison of `make schema` on another schema."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not on PATH")
    words = [make, "breaking", f"BIN={Path(buf).parent}", f"PROTO={proto}", *more]
    return run(words, cwd=ROOT)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tensor.proto", ("repeated int64 sizes = 2;", "repeated int64 sizes = 9;"), '"2"'),
        ("tensor.proto", ("repeated int64 strides = 3;", ""), '"3" with name "strides"'),
        ("tensor.proto", ("int64 sizes", "int32 sizes"), "changed type"),
        ("tensor.proto", ("FLOAT16 = 2;", "FLOAT16 = 9;"), '"2" on enum "DataType"'),
        ("gradient_service.proto", ("rpc ListOperators", "rpc Operators"), "ListOperators"),
    ],
    ids=["renumbered", "removed", "type", "enum", "method"],
)
def test_a_change_that_breaks_released_clients_fails(buf, tmp_path, file, change, message):
    proto = tmp_path / "proto"
    shutil.copytree(ROOT / "proto", proto)
    path = proto / "gradwire/v1" / file
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    done = breaking(buf, proto)
    assert done.returncode != 0
    assert message in done.stdout


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_the_schema_of_today_breaks_no_release(buf, image):
    done = breaking(buf, ROOT / "proto", f"RELEASED={image}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_newest_release_has_the_image_of_its_schema_and_is_compared_with(buf, tmp_path):
    built = tmp_path / "today.binpb"
    words = [buf, "build", "proto", "--exclude-source-info", "--output", str(built)]
    subprocess.run(words, cwd=ROOT, check=True, timeout=60)  # noqa: S603 - our own schema
    today, released = (
        {file.name: file for file in FileDescriptorSet.FromString(path.read_bytes()).file}
        for path in (built, IMAGES[-1])
    )
    assert released.keys() <= today.keys()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changes or released == today
    newest, *_ = re.findall(r"^## \[(\d+\.\d+)\.\d+\]", changes, re.MULTILINE)
    assert IMAGES[-1].stem == f"v{newest}"
    compared = f"RELEASED := proto/released/v{newest}.binpb\n"
    assert compared in (ROOT / "Makefile").read_text()


@pytest.fixture(scope="session")
def buf():
    """Return where buf is; skip the test where there is none."""
    beside = shutil.which("buf", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("buf")
    if found is None:
        pytest.skip("buf is neither beside the interpreter nor on PATH")
    return found


HEADER = {
    "requestId": "from buf",
    "operator": {
        "dmlResampleGrad": {
            "interpolationMode": "DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR",
            "scales": [0.5, 1.5],
        }
    },
    "input": {"dataType": "DATA_TYPE_FLOAT32", "sizes": ["1", "3"]},
    "output": {"dataType": "DATA_TYPE_FLOAT32", "sizes": ["2", "2"]},
}


def encoded(data):
    return base64.b64encode(data).decode()


def test_buf_calls_every_kind_of_method_with_json(buf, tmp_path):
    def curl(method, *messages):
        url = f"http://{server.address}/gradwire.v1.GradientService/{method}"
        words = [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--data", "@-", url]
        environment = {**os.environ, "BUF_CACHE_DIR": str(tmp_path)}
        return run(words, input="\n".join(map(json.dumps, messages)), env=environment)

    def replies(method, *messages):
        done = curl(method, *messages)
        assert done.returncode == 0, done.stderr
        # Each ends with a line of its own.
        return [json.loads(reply) for reply in re.split(r"(?m)(?<=^})\n", done.stdout.strip())]

    first, second = encoded(PUBLISHED_GRADIENT[:5]), encoded(PUBLISHED_GRADIENT[5:])
    sent = [{"offset": 0, "data": first}, {"offset": 5, "data": second}]
    with serving() as server:
        (listed,) = replies("ListOperators", {})
        (reply,) = replies("Evaluate", {**HEADER, "data": encoded(PUBLISHED_GRADIENT)})
        stream = replies("EvaluateStream", {"open": HEADER}, *({"chunk": each} for each in sent))
        refused = curl("Evaluate", {**HEADER, "data": encoded(b"1234")})
    assert [each["name"] for each in listed["operators"]] == list(ops.OPERATORS)
    assert (reply["requestId"], reply["output"]) == ("from buf", HEADER["output"])
    assert base64.b64decode(reply["data"]) == PUBLISHED_RESULT
    opened, *chunks = stream
    assert opened["opened"]["output"] == HEADER["output"]
    data = b"".join(base64.b64decode(each["chunk"]["data"]) for each in chunks)
    assert data == PUBLISHED_RESULT
    assert refused.returncode != 0
    said = json.loads(refused.stderr)
    assert said["code"] == "invalid_argument"
    assert said["message"].startswith("data: 4 bytes")
    details = [each["type"] for each in said["details"]]
    assert details == ["google.rpc.ErrorInfo", "google.rpc.BadRequest"]
