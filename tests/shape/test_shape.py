"""Counts of the source on small trees, and of the frames of real calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from shape import source
from shape.__main__ import BASELINE, table
from shape.frames import Crossed, RecordedServer, crossed, measure, recorded_server

TOKENS = {
    "": 0,
    "x = 1": 3,
    "x = 1  # a remark\n\n# another\n": 3,
    '"""A docstring."""\nx = "a string"\n': 3,
    'x = 1\n"""No docstring."""\n': 4,
    '("A docstring"\n " of two strings")\n': 2,
    'def f():\n    """A docstring."""\n    return (\n        1\n    )\n': 9,
    'class C:\n    """A docstring."""\n': 3,
    'async def f(): "A docstring"; return None\n': 9,
    "x = f'{y + 1:{z}} and more'\n": 3,
}


@pytest.mark.parametrize(("text", "count"), TOKENS.items())
def test_tokens_are_names_numbers_strings_and_operators(text: str, count: int) -> None:
    assert source.tokens(text) == count


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.py", "b/c.py", "b/d/e.py", "v1/f.py", "b/notes.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    return tmp_path


def test_modules_are_grouped_by_the_folder_below_the_root(tree: Path) -> None:
    groups = source.folders(tree, without=[tree / "v1"])
    assert groups == {"": [tree / "a.py"], "b": [tree / "b/c.py", tree / "b/d/e.py"]}
    assert source.folders(tree / "nothing") == {}


def test_class_names_that_occur_once_are_left_out() -> None:
    sources = ["class A: ...\nclass B:\n    class C: ...\n", "class C: ...\nclass A: ..."]
    sources.append("class C: ...")
    assert list(source.repeated_classes(sources).items()) == [("C", 3), ("A", 2)]


def test_only_a_backend_has_callers() -> None:
    text = """
import numpy as np
np.add.accumulate(x)
shrinking.apply(x)
backend.apply(plan, x, y)
def f(self):
    partial(self._backend.accumulate, bands)
    self.backend.name
"""
    assert source.backend_callers({"m.py": text}) == ["m.py:5", "m.py:7"]


def test_layers_are_those_of_the_contract_of_this_name() -> None:
    text = """
[[tool.importlinter.contracts]]
name = "one"
layers = ["a | b", "c"]
[[tool.importlinter.contracts]]
name = "other"
layers = ["d"]
"""
    assert source.layers(text, "one") == ["a | b", "c"]


def test_complex_functions_are_told_by_their_place(tmp_path: Path) -> None:
    message = "`f` is too complex (13 > 12)"
    found = {"filename": f"{tmp_path}/m.py", "location": {"row": 3}, "message": message}
    assert source.complex_functions(json.dumps([found]), tmp_path) == [f"m.py:3 {message}"]


def test_the_table_has_rows_of_either_side() -> None:
    lines = table({"s": {"a": 1}}, {"s": {"b": 2}, "t": {"c": 3}}, "then").splitlines()
    assert [line.split() for line in lines] == [
        ["today", "then"],
        ["s"],
        ["a", "1", "-"],
        ["b", "-", "2"],
        ["t"],
        ["c", "-", "3"],
    ]


def test_the_baseline_can_be_set_beside_any_table() -> None:
    baseline = json.loads(BASELINE.read_text())
    assert {"name", "commit", "measured_with"} <= baseline.keys()
    assert table({}, baseline["figures"], baseline["name"])


def test_frames_are_divided_by_their_modules() -> None:
    entered = Counter(
        {
            "gradwire.client": 4,
            "gradwire.v1.tensor_pb2": 6,
            "gradwire_server.backends": 2,
            "gradwire_server.backends.numpy_cpu": 8,
            "gradwire_serverless": 1,
            "asyncio.events": 10,
        }
    )
    assert crossed([entered]) == Crossed(modules=3, frames=4, backend=10, others=17)
    assert crossed([entered], calls=2) == Crossed(modules=3, frames=2, backend=5, others=8)


def test_what_runs_now_and_then_counts_for_nothing() -> None:
    call = {"gradwire_server.server": 8, "gradwire_server.admin_http": 1}
    disturbed = Counter({**call, "gradwire_server.scheduling.malloc": 5})
    assert crossed([Counter(call), disturbed, Counter(call)]) == Crossed(
        modules=2, frames=9, backend=0, others=0
    )


@pytest.fixture(scope="module")
def server() -> Generator[RecordedServer]:
    with recorded_server() as server:
        yield server


def test_a_call_like_one_before_crosses_less_than_a_new_one(server: RecordedServer) -> None:
    found = measure(server)
    warm, cold = (found[name] for name in found if "Evaluate of 12 KiB" in name or "cold" in name)
    assert 0 < warm.modules < cold.modules
    assert 0 < warm.frames < cold.frames
    assert all(one.frames for one in found.values())
