"""A client in another language, made from the .proto files alone, is understood."""

import base64
import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from gradwire import ops, v1
from support.oracles.dialect_oracles import evaluate
from support.oracles.dialect_tables import EXAMPLES
from support.raw_calls import float32
from support.servers import serving

HERE = Path(__file__).parent / "node"
PROTO = Path(__file__).parents[2] / "proto"
LOCK = HERE / "package-lock.json"
# What npm says of a lock that does not fit package.json, or packages that do not fit the lock.
WRONG_LOCK = ("EUSAGE", "EINTEGRITY")


def _packages(lock):
    """Version of each package, by its folder."""
    packages = json.loads(lock.read_text())["packages"]
    return {folder: facts["version"] for folder, facts in packages.items() if folder}


def _install(folder):
    """Install what the lock names; skip the test where npm cannot, fail where the lock is wrong."""
    installed = folder / "node_modules" / ".package-lock.json"
    if installed.exists() and _packages(installed) == _packages(folder / LOCK.name):
        return
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not on PATH and the packages of tests/contract/node are not installed")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
    if not done.returncode:
        return
    assert not any(code in done.stderr for code in WRONG_LOCK), done.stderr
    pytest.skip(f"npm cannot install the packages of tests/contract/node: {done.stderr[-300:]}")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on PATH")
    with LOCK.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes with tests, one installs
        _install(HERE)
    requests = tmp_path_factory.mktemp("node") / "requests.json"
    every = [
        v1.EvaluateRequest(
            operator=ops.to_message(each.operator),
            input=float32(*each.source),
            output=float32(*each.result),
            data=each.given().astype("<f4").tobytes(),
        )
        for each in EXAMPLES.values()
    ]
    told = [MessageToDict(each, preserving_proto_field_name=True) for each in every]
    requests.write_text(json.dumps(told))
    with serving() as server:
        command = [node, str(HERE / "client.js"), server.address, str(PROTO), str(requests)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_node_evaluates_the_published_example_lists_operators_and_reads_an_error(told):
    expected = {"sizes": [2, 2], "values": [9, 6, 0, 0]}
    assert told["evaluate"] == {"request_id": "from node", **expected}
    assert told["stream"].items() >= {**expected, "lengths": [16]}.items()
    assert len(told["stream"]["digest"]) == 64
    refusal = told["refusal"]
    assert (refusal["code"], refusal["details"]) == ("INVALID_ARGUMENT", 1)
    assert refusal["message"].startswith("data: 8 bytes")
    assert told["operators"] == list(ops.OPERATORS)
    assert told["max_rank"] == 8


@pytest.mark.parametrize("name", EXAMPLES, ids=list(EXAMPLES))
def test_node_gets_every_example_of_every_dialect_to_the_bit(told, name):
    example = EXAMPLES[name]
    result = told["results"][list(EXAMPLES).index(name)]
    expected = evaluate(example.operator, example.given(), example.result)
    assert result["sizes"] == list(example.result)
    assert base64.b64decode(result["data"]) == expected.astype("<f4").tobytes()


def test_the_lock_names_no_registry_and_exact_versions_alone():
    assert "resolved" not in LOCK.read_text()
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    locked = _packages(LOCK)
    assert {name: locked[f"node_modules/{name}"] for name in wanted} == wanted
