"""Selects the tests that execute a mutant's lines, from what coverage recorded."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import coverage

# How long the tests of a mutant may take together without it, by the time noted for each.
BUDGET_S = 25.0
MOST = 40


def chosen(
    tests: Iterable[str], seconds: Mapping[str, float], lines: Mapping[str, int]
) -> tuple[str, ...]:
    """Order tests, each function's cases in turn, as far as time allows.

    Those that execute the fewest lines go first: they are about these lines more than others are.
    """
    cases: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda one: (lines[one], one)):
        cases[test.partition("[")[0]].append(test)
    rounds = [
        (place, lines[test], test)
        for functions in cases.values()
        for place, test in enumerate(functions)
    ]
    selected: list[str] = []
    left = BUDGET_S
    for _, _, test in sorted(rounds):
        if seconds[test] <= left and len(selected) < MOST:
            selected.append(test)
            left -= seconds[test]
    return tuple(selected)


class Recorded:
    """What `mutants.contexts` has written to a folder."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        for file in sorted(folder.glob("seconds-*.json")):
            self.seconds |= json.loads(file.read_text(encoding="utf-8"))
        whole = coverage.Coverage(data_file=folder / "lines", config_file=False)
        whole.combine([str(folder)], strict=True, keep=True)
        self._data = whole.get_data()
        self.lines: Counter[str] = Counter()
        for name in self._data.measured_files():
            for contexts in self._data.contexts_by_lineno(name).values():
                self.lines.update(contexts)

    def tests(self, file: Path, lines: Collection[int]) -> set[str]:
        """Return the tests that execute one of the lines, as far as they passed."""
        contexts = self._data.contexts_by_lineno(str(file))
        found = {test for line in lines for test in contexts.get(line, ())}
        return found & self.seconds.keys()
