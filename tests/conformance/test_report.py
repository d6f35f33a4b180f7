"""The report is what its generator writes; listed deviations are what frameworks do."""

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from conformance import onednn_library, report
from conformance.one_axis import DIRECTML
from conformance.report import LISTED
from conformance.rows import version

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/conformance.md").read_text()


def test_the_page_begins_as_it_is_generated():
    made = report.markdown("DATE", [])
    given = r"on \d{4}-\d\d-\d\d,\n.*, Python \S+;"
    assert PAGE.startswith(re.sub(r"on DATE,\n.*, Python \S+;", re.findall(given, PAGE)[0], made))


@pytest.mark.parametrize("section", report.SECTIONS, ids=lambda section: section.title)
def test_a_section_says_what_was_compared_and_has_no_figures_where_nothing_ran(section):
    assert f"\n## {section.title}\n\n{section.about} The dialect: " in PAGE
    (row,) = re.findall(rf"^\| {section.title} \|.*$", PAGE, re.MULTILINE)
    assert ("formula only" in row) == (not section.packages)
    assert section.packages or not re.search(r"[1-9]", row)


@pytest.mark.heavy
def test_the_section_of_a_formula_is_made_again_to_the_byte():
    made = report.markdown("DATE", [report.run(DIRECTML)])
    row, section = made[made.index("| DirectML |") :].split("\n", 1)
    assert f"\n{row}\n" in PAGE
    assert section in PAGE


@pytest.mark.parametrize(
    "section",
    [section for section in report.SECTIONS if section.packages],
    ids=lambda section: section.title,
)
def test_no_case_of_an_installed_framework_is_unexplained(section):
    # Without expecttest PyTorch's own samples alone are left out.
    for name in {*section.packages} - {"expecttest"}:
        if version(name) is None:
            pytest.skip(f"compares with {name} where it is installed")
    # As for the report, in a process of its own: frameworks disturb each other.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = pool.submit(report.compared, section, brief=True).result()
    assert rows
    assert [row for row in rows if row.wrong] == []


@pytest.mark.parametrize("deviation", LISTED, ids=str)
def test_a_deviation_names_a_test_that_is_there(deviation):
    path, name = deviation.test.split("::")
    assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("deviation", LISTED, ids=str)
def test_the_framework_s_own_code_shows_its_deviation(deviation):
    if version(deviation.framework) is None:
        pytest.skip(f"runs {deviation.framework} where it is installed; make conformance does")
    if deviation.needs_avx512 and not onednn_library.has_avx512():
        pytest.skip("oneDNN deviates in its code for AVX-512 alone, which this processor has not")
    assert report.printed(deviation.framework)[deviation] == deviation.prints
