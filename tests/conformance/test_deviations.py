"""Every listed deviation is what the installed framework does, and names a test that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import deviations
from conformance.deviations import Deviation

LISTED = deviations.listed()


@pytest.mark.parametrize("deviation", LISTED, ids=lambda each: each.title)
def test_a_deviation_names_a_test_that_is_there(deviation: Deviation) -> None:
    path, name = deviation.test.split("::")
    assert f"def {name}(" in (Path(__file__).parents[2] / path).read_text()


@pytest.mark.parametrize(
    "deviation", [each for each in LISTED if each.code], ids=lambda each: each.title
)
def test_the_framework_s_own_code_shows_its_deviation(deviation: Deviation) -> None:
    pytest.importorskip(deviation.framework, reason="shows what a framework does where it is there")
    assert deviations.printed(deviation) == deviation.prints
