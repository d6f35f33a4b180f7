"""Benchmarks by their names, the judgement of `compare`, and `overload` in its quick form."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.compare.judgement import judge

ROOT = Path(__file__).parents[2]


def _run(*words):
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(  # noqa: S603 - our own program
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_every_listed_name_and_every_command_of_a_page_exists():
    listed = _run().stdout
    for name, (module, _) in NAMES.items():
        assert f"  {name} " in listed
        assert find_spec(f"benchmarks.{module}") is not None
    pages = [ROOT / "Makefile", *(ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert set() < set(re.findall(r"python -m benchmarks ([a-z-]+)", text)) <= NAMES.keys()
    assert _run("nothing").returncode == 2


@pytest.mark.parametrize(
    ("better", "ours", "worse"),
    [
        ("lower", [1.2] * 10, True),
        ("higher", [0.8] * 10, True),
        ("lower", [1.09] * 10, False),
        ("higher", [0.92] * 10, False),
        ("lower", [0.9] + [1.3] * 9, True),
        ("lower", [0.9] * 2 + [1.3] * 8, False),
    ],
    ids=str,
)
def test_a_row_is_worse_by_a_tenth_in_nine_of_ten_pairs(better, ours, worse):
    assert judge(ours, [1.0] * 10, better=better).worse is worse


@pytest.mark.slow
def test_overload_of_a_server_that_refuses_all_reckons_nothing(tmp_path):
    found = tmp_path / "found.json"
    words = "overload --kinds ms,streams --seconds 0.3 --settle 0 --json"
    flags = "--backend numpy_cpu --no-warm-up --max-work 1"
    done = _run(*words.split(), str(found), "--flags", flags)
    assert done.returncode == 0, done.stderr
    for facts in json.loads(found.read_text())["kinds"]:
        assert (facts["overload"]["refused_share"], facts["goodput_over_peak"]) == (1, None)
