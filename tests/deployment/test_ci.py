"""CI lists every skip with its reason, and runs what needs a framework somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from deployment.manifests import ROOT

# Too large for CI: their results are stored, and `make conformance` runs them.
NOT_IN_CI = {"tensorflow", "openvino"}
FRAMEWORK = r"(torch|jax|onnx\w*|tensorflow|openvino)\b"
NEEDS = re.compile(r'(?:importorskip|find_spec|installed)\("' + FRAMEWORK)


def test_skips_are_listed_once_for_each_reason(tmp_path: Path) -> None:
    (tmp_path / "test.log").write_text(
        "...\nSKIPPED [2] tests/a/test_b.py:7: PyTorch is not installed\n"
        "SKIPPED [1] tests/c/test_d.py:70: PyTorch is not installed\n3 passed, 3 skipped\n"
    )
    (tmp_path / "floors.log").write_text(
        "SKIPPED [4] tests/a/test_b.py:7: PyTorch is not installed\n"
        "SKIPPED [1] tests/e.py:1: no C compiler\n"
    )
    (tmp_path / "cuda.log").write_text("CUDA 12: skipped, pip could not install it\n1 skipped\n")
    logs = sorted(tmp_path.glob("*.log"))
    done = subprocess.run(  # noqa: S603 - our own script
        [ROOT / ".ci/skips", *logs], capture_output=True, text=True, check=True
    )
    assert [line.strip() for line in done.stdout.splitlines()] == [
        "7  PyTorch is not installed (floors, test)",
        "1  CUDA 12: skipped, pip could not install it (cuda)",
        "1  no C compiler (floors)",
    ]


@pytest.mark.parametrize(
    "path", [each for each in (ROOT / ".ci").iterdir() if "77" in each.read_text()], ids=str
)
def test_a_stage_that_skips_itself_says_why_in_the_form_that_is_listed(path: Path) -> None:
    ends = [line for line in path.read_text().splitlines() if "exit 77" in line]
    assert all(": skipped, " in line for line in ends), ends


def test_what_needs_a_framework_runs_in_ci() -> None:
    oracles = (ROOT / ".ci/oracles").read_text()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        frameworks = set(NEEDS.findall(path.read_text())) - NOT_IN_CI
        name = path.relative_to(ROOT).as_posix()
        folder = path.parent.relative_to(ROOT).as_posix()
        assert not frameworks or name in oracles or f" {folder} " in oracles, name
