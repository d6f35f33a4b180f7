"""The overload benchmark of a server that serves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ms", "streams"])
def test_where_nothing_is_served_nothing_is_reckoned(kind: str, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    flags = "--backend numpy_cpu --no-warm-up --max-work 1"
    words = ["--kinds", kind, "--flags", flags, "--seconds", "0.3", "--settle", "0"]
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "benchmarks", "overload", *words, "--json", str(found)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(found.read_text())["kinds"]
    assert facts["peak"]["served_per_s"] == 0
    assert facts["overload"]["refused_share"] == 1
    reckoned = ("goodput_over_peak", "p99_over_unloaded", "goodput_bound")
    assert [facts[name] for name in reckoned] == [None] * 3
