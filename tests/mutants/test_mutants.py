"""The recorded mutants, and the tool that tries them."""

import dataclasses
import subprocess

import pytest

from mutants.__main__ import ROOT, TABLE
from mutants.running import Copy, Mutant, read

_SOURCE = """\
class Counter:
    def up_to(self, limit: int) -> int:
        total = 0
        for number in range(limit):
            total += number
        return total
"""
_TEST = "import counter\n\ndef test_it_counts():\n    assert counter.Counter().up_to(3) == 3\n"
_MUTANT = Mutant(
    1,
    "counting",
    "The last number is counted twice.",
    "server/counter.py",
    "Counter.up_to",
    "    total += number\nreturn total\n",
    "    total += number\nreturn total + number\n",
    outcome="caught",
    tests=("test_counter.py::test_it_counts",),
)


def test_every_recorded_mutant_is_described_and_judged_and_its_lines_are_in_the_code():
    mutants = read(TABLE)
    assert [mutant.number for mutant in mutants] == list(range(1, len(mutants) + 1))
    assert len({mutant.behavior for mutant in mutants}) == len(mutants) == 120
    for mutant in mutants:
        caught = mutant.outcome == "caught"
        assert caught or mutant.outcome == "equivalent"
        assert (bool(mutant.tests), bool(mutant.reason)) == (caught, not caught)
        mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    with pytest.raises(LookupError, match=r"express again: The last number is counted twice\."):
        _MUTANT.applied(_SOURCE.replace("total += number", "total = total + number"))


_DIES = "    total += number\n__import__('os')._exit(0)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "test", "caught"),
    [
        ({"tests": ("test_gone.py::test_it", *_MUTANT.tests)}, _TEST, True),
        ({"tests": ("test_counter.py::test_it_counts[case]",)}, _TEST, True),
        ({"tests": ("test_counter.py::test_of_another_name",)}, _TEST, True),
        ({"tests": ("test_gone.py::test_it_counts",)}, _TEST, True),
        ({"after": _DIES}, _TEST, True),
        ({"after": _MUTANT.before}, _TEST, False),
        ({}, "def test_it_counts():\n    assert False\n", False),
    ],
    ids=["module", "case", "function", "moved", "dies", "escapes", "fails anyway"],
)
def test_a_mutant_is_caught_by_a_test_that_fails_with_it_alone(tmp_path, changes, test, caught):
    root = tmp_path / "repository"
    for name, text in {
        "tests/mutants/running.py": (ROOT / "tests/mutants/running.py").read_text(),
        "server/counter.py": "import math\n\n\n" + _SOURCE,
        "test_counter.py": test,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", root], check=True)  # noqa: S603, S607 - git, by its name
    copy = Copy(root, tmp_path / "copy")
    copy.refresh()
    mutant = dataclasses.replace(_MUTANT, **changes)
    assert copy.judge(mutant) == ("test_counter.py::test_it_counts" if caught else None)
    assert (copy.folder / "server/counter.py").read_text().endswith(_SOURCE)
