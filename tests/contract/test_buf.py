"""buf: what breaks released clients, and a generic tool that knows nothing but reflection."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def breaking(buf: str, proto: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the comparison of `make schema` on another schema."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not on PATH")
    words = [make, "breaking", f"BIN={Path(buf).parent}", f"PROTO={proto}", *more]
    return subprocess.run(  # noqa: S603 - our own Makefile
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tensor.proto", ("repeated int64 sizes = 2;", "repeated int64 sizes = 9;"), '"2"'),
        ("tensor.proto", ("repeated int64 strides = 3;", ""), '"3" with name "strides"'),
        ("tensor.proto", ("int64 sizes", "int32 sizes"), "changed type"),
        ("gradient_service.proto", ("rpc ListOperators", "rpc Operators"), "ListOperators"),
    ],
    ids=["renumbered", "removed", "type", "method"],
)
def test_a_change_that_breaks_released_clients_fails(
    buf: str, tmp_path: Path, file: str, change: tuple[str, str], message: str
) -> None:
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
def test_the_schema_of_today_breaks_no_release(buf: str, image: Path) -> None:
    done = breaking(buf, ROOT / "proto", f"RELEASED={image}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_newest_release_has_the_image_of_its_schema_and_is_compared_with(
    buf: str, tmp_path: Path
) -> None:
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
def buf() -> str:
    """Return where buf is; skip the test where there is none."""
    beside = shutil.which("buf", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("buf")
    if found is None:
        pytest.skip("buf is neither beside the interpreter nor on PATH")
    return found


PLAIN_GRPC = ("--protocol", "grpc", "--http2-prior-knowledge")
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


Curl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def curl(buf: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Curl]:
    """Give `buf curl`, which calls a method with messages as JSON."""
    environment = {**os.environ, "BUF_CACHE_DIR": str(tmp_path_factory.mktemp("buf"))}
    with serving() as server:

        def run(method: str, *messages: object) -> subprocess.CompletedProcess[str]:
            url = f"http://{server.address}/gradwire.v1.GradientService/{method}"
            command = [buf, "curl", *PLAIN_GRPC, "--data", "@-", url]
            given: Any = {"input": "\n".join(map(json.dumps, messages)), "env": environment}
            return subprocess.run(  # noqa: S603 - the tool that this environment pins
                command, **given, capture_output=True, text=True, check=False, timeout=60
            )

        yield run


def replies(done: subprocess.CompletedProcess[str]) -> Iterator[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    text = done.stdout.strip()
    while text:
        reply, end = json.JSONDecoder().raw_decode(text)
        yield reply
        text = text[end:].lstrip()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_the_operators_can_be_listed_and_one_evaluated(curl: Curl) -> None:
    (reply,) = replies(curl("ListOperators", {}))
    assert [each["name"] for each in reply["operators"]] == list(ops.OPERATORS)
    (reply,) = replies(curl("Evaluate", {**HEADER, "data": encoded(PUBLISHED_GRADIENT)}))
    assert reply["requestId"] == "from buf"
    assert reply["output"] == HEADER["output"]
    assert base64.b64decode(reply["data"]) == PUBLISHED_RESULT


def test_evaluate_stream_takes_and_gives_json(curl: Curl) -> None:
    first, second = encoded(PUBLISHED_GRADIENT[:5]), encoded(PUBLISHED_GRADIENT[5:])
    sent = [{"offset": 0, "data": first}, {"offset": 5, "data": second}]
    done = curl("EvaluateStream", {"open": HEADER}, *({"chunk": each} for each in sent))
    opened, *chunks = replies(done)
    assert opened["opened"]["output"] == HEADER["output"]
    data = b"".join(base64.b64decode(each["chunk"]["data"]) for each in chunks)
    assert data == PUBLISHED_RESULT


def test_a_refusal_is_told_with_its_details(curl: Curl) -> None:
    done = curl("Evaluate", {**HEADER, "data": encoded(b"1234")})
    assert done.returncode != 0
    said = json.loads(done.stderr)
    assert said["code"] == "invalid_argument"
    assert said["message"].startswith("data: 4 bytes")
    details = [each["type"] for each in said["details"]]
    assert details == ["google.rpc.ErrorInfo", "google.rpc.BadRequest"]
