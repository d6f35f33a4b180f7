"""Every listed deviation is what the installed framework does, and names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance import deviations
from conformance.deviations import Deviation
from conformance.rows import version
from support.oracles import live_onednn

LISTED = deviations.listed()
ROOT = Path(__file__).parents[2]
# Too large for CI: their results are stored, and `make conformance` runs them.
NOT_IN_CI = {"tensorflow", "openvino"}
FRAMEWORK = r"(torch|jax|onnx\w*|tensorflow|openvino)\b"
NEEDS = re.compile(r'(?:importorskip|find_spec|installed)\("' + FRAMEWORK)


@pytest.mark.parametrize("deviation", LISTED, ids=str)
def test_a_deviation_names_a_test_that_is_there(deviation: Deviation) -> None:
    path, name = deviation.test.split("::")
    assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("deviation", LISTED, ids=str)
def test_the_framework_s_own_code_shows_its_deviation(deviation: Deviation) -> None:
    if version(deviation.framework) is None:
        pytest.skip(f"runs {deviation.framework} where it is installed; make conformance does")
    if deviation.needs_avx512 and not live_onednn.has_avx512():
        pytest.skip("oneDNN deviates in its code for AVX-512 alone, which this processor has not")
    assert deviations.printed(deviation) == deviation.prints


def test_what_needs_a_framework_runs_in_ci() -> None:
    oracles = (ROOT / ".ci/oracles").read_text()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        frameworks = set(NEEDS.findall(path.read_text())) - NOT_IN_CI
        name = path.relative_to(ROOT).as_posix()
        folder = path.parent.relative_to(ROOT).as_posix()
        assert not frameworks or name in oracles or f" {folder} " in oracles, name
