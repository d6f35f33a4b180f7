"""A generic tool that knows nothing but server reflection evaluates the published example."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwire import ops
from support.raw_calls import PUBLISHED_GRADIENT, PUBLISHED_RESULT
from support.servers import serving

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


class Curl:
    """`buf curl` against one server."""

    def __init__(self, buf: str, address: str, cache: Path) -> None:
        self._buf = buf
        self._address = address
        self._environment = {**os.environ, "BUF_CACHE_DIR": str(cache)}

    def __call__(self, method: str, *messages: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Call a method with these messages as JSON."""
        url = f"http://{self._address}/gradwire.v1.GradientService/{method}"
        return subprocess.run(  # noqa: S603 - the tool that this environment pins
            [
                self._buf,
                "curl",
                "--protocol",
                "grpc",
                "--http2-prior-knowledge",
                "--data",
                "@-",
                url,
            ],
            input="\n".join(json.dumps(message) for message in messages),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=self._environment,
        )

    def replies(self, method: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Call a method that succeeds and return what it answers."""
        done = self(method, *messages)
        assert done.returncode == 0, done.stderr
        decoder, text, replies = json.JSONDecoder(), done.stdout.strip(), list[dict[str, Any]]()
        while text:
            reply, end = decoder.raw_decode(text)
            replies.append(reply)
            text = text[end:].lstrip()
        return replies


@pytest.fixture(scope="module")
def curl(buf: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Curl]:
    with serving() as server:
        yield Curl(buf, server.address, tmp_path_factory.mktemp("buf"))


def test_evaluate_takes_and_gives_json(curl: Curl) -> None:
    data = base64.b64encode(PUBLISHED_GRADIENT).decode()
    (reply,) = curl.replies("Evaluate", {**HEADER, "data": data})
    assert reply["requestId"] == "from buf"
    assert reply["output"] == HEADER["output"]
    assert base64.b64decode(reply["data"]) == PUBLISHED_RESULT


def test_evaluate_stream_takes_and_gives_json(curl: Curl) -> None:
    halves = PUBLISHED_GRADIENT[:5], PUBLISHED_GRADIENT[5:]
    opened, *chunks = curl.replies(
        "EvaluateStream",
        {"open": HEADER},
        *(
            {"chunk": {"offset": offset, "data": base64.b64encode(half).decode()}}
            for offset, half in zip((0, 5), halves, strict=True)
        ),
    )
    assert opened["opened"]["output"] == HEADER["output"]
    data = b"".join(base64.b64decode(each["chunk"]["data"]) for each in chunks)
    assert data == PUBLISHED_RESULT


def test_the_operators_can_be_listed(curl: Curl) -> None:
    (reply,) = curl.replies("ListOperators", {})
    assert [each["name"] for each in reply["operators"]] == list(ops.OPERATORS)


def test_a_refusal_is_told_with_its_details(curl: Curl) -> None:
    done = curl("Evaluate", {**HEADER, "data": base64.b64encode(b"1234").decode()})
    assert done.returncode != 0
    said = json.loads(done.stderr)
    assert said["code"] == "invalid_argument"
    assert said["message"].startswith("data: 4 bytes")
    assert [each["type"] for each in said["details"]] == [
        "google.rpc.ErrorInfo",
        "google.rpc.BadRequest",
    ]
