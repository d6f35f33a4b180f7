"""The sections of the report and the list of deviations, deviations.toml; their Markdown."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance import onednn_library, onnx_resize, pytorch
from conformance.one_axis import DIRECTML, JAX, OPENVINO, TENSORFLOW
from conformance.rows import TOLD, Row, Section, Tally, version

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Deviation:
    """Deviation of a framework from its text or its forward, as in deviations.toml."""

    framework: str
    title: str
    instead: str
    test: str
    code: str
    prints: str
    needs_avx512: bool = False

    def __str__(self) -> str:
        return f"{self.framework}: {self.title}"


# Runs codes one after another; writes what each prints, or its error.
_RUN = """
import contextlib, io, json, sys, traceback
found = []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(code, {"__name__": "__main__"})
        except Exception:
            traceback.print_exc(file=out)
    found.append(out.getvalue())
json.dump(found, sys.stdout)
"""


@cache
def printed(framework: str) -> dict[Deviation, str]:
    """Run a framework's own code in a process of its own; return what each deviation prints."""
    listed = [each for each in LISTED if each.framework == framework]
    path = os.pathsep.join([str(_HERE.parent), *filter(None, sys.path)])
    child = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", _RUN],
        input=json.dumps([each.code for each in listed]),
        # The tests' own modules, and no greetings of TensorFlow.
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return dict(zip(listed, json.loads(child.stdout), strict=True))


LISTED = [Deviation(**entry) for entry in TOLD["deviation"]]
LIBRARIES = [module.SECTION for module in (onednn_library, pytorch, onnx_resize)]
SECTIONS = [DIRECTML, *LIBRARIES, TENSORFLOW, JAX, OPENVINO]


@dataclass(frozen=True, slots=True)
class Found:
    """A section's results; deviations come with what their code printed, None where it did not run.

    missing  packages that are not installed, so that nothing was run
    """

    section: Section
    versions: str
    missing: list[str]
    rows: list[Row]
    deviations: list[tuple[Deviation, str | None]]


def wrong(found: list[Found]) -> Iterator[str]:
    """Say what must not be."""
    for each in found:
        for row in each.rows:
            if row.wrong:
                yield f"{row.wrong} cases differ: {row}"
        for deviation, printed in each.deviations:
            if printed is not None and printed != deviation.prints:
                yield f"{deviation}: prints {printed!r} instead of {deviation.prints!r}"


def markdown(date: str, found: list[Found]) -> str:
    """Return the whole page."""
    machine = f"{platform.system()} {platform.machine()}"
    text: str = TOLD["head"].format(date=date, machine=machine, python=platform.python_version())
    for each in found:
        counts = ("cases", "exact", "agree", "deviating")
        cells = [str(sum(getattr(row, name) for row in each.rows)) for name in counts]
        if each.missing or not each.section.packages:
            # Where nothing of the framework ran, its formula's figures are in the section alone.
            cells = ["not run" if each.missing else "formula only", "", "", ""]
        cells = [each.section.title, each.versions, *cells, str(len(each.deviations))]
        text += "| " + " | ".join(cells) + " |\n"
    return text + "".join(_section(each) for each in found)


def _section(found: Found) -> str:
    section = found.section
    told = f"{section.about} The dialect: [{section.page}]({section.page})."
    if found.missing:
        told = f"Not run: {', '.join(found.missing)} not installed."
    text, peer = f"\n## {section.title}\n\n{told}\n", ""
    for row in found.rows:
        if row.peer != peer:
            peer = row.peer
            text += TOLD["columns"].format(peer)
        error = f"{row.error:.1e}" if row.error else "0"
        cells = [row.operator, row.attributes, row.dtype, row.cases, row.exact, row.agree]
        text += "| " + " | ".join(map(str, [*cells, row.deviating, error])) + " |\n"
    if found.deviations:
        text += f"\n### Where {section.title} deviates\n"
    for deviation, printed in found.deviations:
        path, name = deviation.test.split("::")
        said, shown = "It prints", printed
        if printed is None:
            said, shown = "Not run now; it is known to print", deviation.prints
        text += f"\n**{deviation.title}.** {deviation.instead}\n\n```python\n{deviation.code}```\n"
        text += f"\n{said}\n\n```text\n{shown}```\n\nTest: [{path}](../{path}), `{name}`\n"
    return text


def run_all(jobs: int) -> list[Found]:
    """Run all sections, each in a process of its own, and tell of each that ends."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        # JAX compiles each case and takes longest: it begins first.
        ordered = sorted(SECTIONS, key=lambda section: section is not JAX)
        running = {section.title: pool.submit(run, section) for section in ordered}
        for each in as_completed(running.values()):
            found = each.result()
            cases = sum(row.cases for row in found.rows)
            text = f"{cases} cases" if not found.missing else f"not installed: {found.missing}"
            sys.stderr.write(f"{found.section.title}: {text}\n")
        return [running[section.title].result() for section in SECTIONS]


def run(section: Section) -> Found:
    """Compare what a section compares, where its packages are installed."""
    found = {name: version(name) for name in section.packages}
    missing = [name for name in found if found[name] is None]
    versions = ", ".join(f"{name} {release}" for name, release in found.items() if release)
    shown = [
        (each, printed(each.framework)[each] if not missing else None)
        for each in LISTED
        if each.framework in section.packages
    ]
    rows = [] if missing else compared(section)
    return Found(section, versions, missing, rows, shown)


def compared(section: Section, *, brief: bool = False) -> list[Row]:
    tally = Tally(brief=brief)
    section.compare(tally)
    return tally.rows()
