"""Conversion of the project's docstrings to numpydoc's sections.

A list of parameters is written as names and texts in two columns, with at least two spaces between:

    timeout_s  seconds a call may take,
               tries and pauses included
"""

from __future__ import annotations

import re
from typing import Any

_ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)  +(\S.*)$")


def to_numpydoc(_: Any, what: str, __: str, ___: object, ____: object, lines: list[str]) -> None:
    """Replace two-column lists by the section Parameters, or Attributes; called by autodoc."""
    title = "Parameters" if what in {"class", "function", "method", "exception"} else "Attributes"
    entries: list[str] = []
    rest: list[str] = []
    column = 0
    for line in lines:
        entry = _ENTRY.match(line)
        if entry:
            column = entry.start(2)
            entries += [entry[1], f"    {entry[2]}"]
        elif column and line[:column].isspace() and line.strip():
            entries.append(f"    {line.strip()}")
        else:
            column = 0
            rest.append(line)
    if not entries:
        return
    # numpydoc wants its sections last.
    while rest and not rest[-1].strip():
        rest.pop()
    lines[:] = [*rest, "", title, "-" * len(title), *entries, ""]
