"""Compare every dialect with the frameworks that are installed, and write the report.

python -m conformance [--json FILE] [--markdown FILE]

Ends with status 1 where a case is neither exact, nor within roundings, nor a listed deviation, and
where a listed deviation is not what the installed framework does.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path

from conformance import (
    deviations,
    jax_image,
    onednn_stored,
    onnx_resize,
    openvino_node,
    pytorch,
    report,
    tensorflow_ops,
)
from conformance.report import Found
from conformance.rows import Section

SECTIONS = [
    module.SECTION
    for module in (pytorch, onnx_resize, tensorflow_ops, jax_image, openvino_node, onednn_stored)
]


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _run(section: Section) -> Found:
    missing = [name for name in section.packages if importlib.util.find_spec(name) is None]
    versions = {
        name: importlib.metadata.version(release)
        for name, release in section.packages.items()
        if name not in missing
    }
    _say(f"{section.title}: {'not installed: ' + ', '.join(missing) if missing else versions}")
    found = Found(section, versions, missing, [] if missing else section.rows(), [])
    names = {*section.packages, *(["onednn"] if section is onednn_stored.SECTION else [])}
    for each in deviations.listed():
        if each.framework in names:
            shown = each.code and not missing
            found.deviations.append((each, deviations.printed(each) if shown else None))
    for row in found.rows:
        _say(f"  {row}")
    return found


def main() -> int:
    """Run what is installed; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    date = dt.datetime.now(dt.UTC).date().isoformat()
    found = [_run(section) for section in SECTIONS]
    if options.json:
        sections = [
            {
                "title": each.section.title,
                "versions": each.versions,
                "missing": each.missing,
                "rows": [dataclasses.asdict(row) for row in each.rows],
                "deviations": [dataclasses.asdict(d) | {"printed": p} for d, p in each.deviations],
            }
            for each in found
        ]
        options.json.write_text(json.dumps({"date": date, "sections": sections}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(report.markdown(date, found))
    for line in report.wrong(found):
        _say(line)
    return bool(list(report.wrong(found)))


if __name__ == "__main__":
    sys.exit(main())
