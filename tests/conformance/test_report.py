"""docs/conformance.md is what its generator writes, as far as that runs without the frameworks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance import directml, report, sections

PAGE = (Path(__file__).parents[2] / "docs/conformance.md").read_text()


def test_the_page_begins_as_it_is_generated() -> None:
    made = report.markdown("DATE", [])
    facts = r"on DATE,\n.*, Python \S+;"
    given = r"on \d{4}-\d\d-\d\d,\n.*, Python \S+;"
    assert PAGE.startswith(re.sub(facts, next(iter(re.findall(given, PAGE))), made))


def test_what_each_section_says_of_itself_is_on_the_page() -> None:
    for section in sections.SECTIONS:
        assert f"\n## {section.title}\n\n{section.about} The dialect: " in PAGE


def test_no_figures_stand_beside_a_framework_of_which_nothing_ran() -> None:
    for section in sections.SECTIONS:
        (row,) = re.findall(rf"^\| {section.title} \|.*$", PAGE, re.MULTILINE)
        assert ("formula only" in row) == (not section.packages)
        assert section.packages or not re.search(r"[1-9]", row)


@pytest.mark.slow
def test_the_section_of_a_formula_is_made_again_to_the_byte() -> None:
    made = report.markdown("DATE", [sections.run(directml.SECTION)])
    row, section = made[made.index("| DirectML |") :].split("\n", 1)
    assert f"\n{row}\n" in PAGE
    assert section in PAGE
