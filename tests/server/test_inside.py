"""What is inside stays inside: no code comes in by the wire, and no error tells of the machine."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy.typing as npt
import pytest

from every_method import EVERY, call
from gradwire_server.backends import NumpyCpu
from gradwire_server.plans import Plan
from raw_calls import RawClient
from refusals import check_refusal
from serving import serving

# What makes objects of any kind, or code, of bytes.
FORBIDDEN_MODULES = {
    "cloudpickle",
    "code",
    "codeop",
    "dbm",
    "dill",
    "joblib",
    "marshal",
    "multiprocessing",
    "pickle",
    "shelve",
    "xmlrpc",
    "yaml",
}
# Talks with processes that it starts itself, through pipes of their own.
WITH_OWN_PROCESSES = {"gradwire/loadtest/runner.py", "gradwire/loadtest/generator.py"}
FORBIDDEN_CALLS = {"__import__", "compile", "eval", "exec"}


def sources(package: str) -> Iterator[tuple[Path, ast.Module]]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for path in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def called(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


@pytest.mark.parametrize("package", ["gradwire_server", "gradwire"])
def test_nothing_here_makes_objects_or_code_of_bytes(package: str) -> None:
    seen = 0
    for path, tree in sources(package):
        seen += 1
        own = "/".join(path.parts[-3:]) in WITH_OWN_PROCESSES
        forbidden = FORBIDDEN_MODULES - {"multiprocessing"} if own else FORBIDDEN_MODULES
        assert not forbidden & set(imported(tree)), path
        assert not FORBIDDEN_CALLS & set(called(tree)), path
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
    assert seen > 50


class _Faulty(NumpyCpu):
    """A backend whose faults tell of the machine."""

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Fail."""
        raise RuntimeError(f"no room in {__file__}, user root, token s3cret")


def test_a_fault_tells_its_request_id_and_nothing_of_the_machine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(backend=_Faulty()) as server, RawClient(server.address) as client:
        for method in ("Evaluate", "EvaluateStream"):
            name = f"/gradwire.v1.GradientService/{method}"
            replies, refusal = call(client.channel, name, EVERY[name])
            refused = check_refusal(refusal, grpc.StatusCode.INTERNAL, "INTERNAL")
            told = str(refused).encode() + b"".join(replies)
            for word in (b"s3cret", b"root", b".py", b"Traceback", b"RuntimeError"):
                assert word not in told, told
    assert "s3cret" in caplog.text
