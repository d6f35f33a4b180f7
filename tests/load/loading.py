"""The command line and the report of the programs of long load tests."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def reported(
    text: str | None, run: Callable[..., dict[str, Any]], **defaults: float
) -> dict[str, Any]:
    """Run with what the command line says; write the report where --json says; return it.

    text      what --help prints
    run       called with a folder of its own, and the options by their names
    defaults  of the options, whose types are theirs: duration_s is --duration
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in defaults.items():
        flag = f"--{name.removesuffix('_s').replace('_', '-')}"
        parser.add_argument(flag, dest=name, type=type(default), default=default)
    parser.add_argument("--json", type=Path)
    options = vars(parser.parse_args())
    file = options.pop("json")
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), **options)
    if file:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report
