"""Selects the tests that execute the lines of a mutant."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import coverage

# Limit of the recorded durations of a mutant's tests.
BUDGET_S = 25.0
MOST = 100


def chosen(
    tests: Iterable[str], seconds: Mapping[str, float], lines: Mapping[str, int]
) -> tuple[str, ...]:
    """Return one case of each test function in turn, then the quickest tests, within the limits.

    Tests that execute the fewest lines go first: they are the most specific ones.
    """
    cases: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda one: (lines[one], one)):
        cases[test.partition("[")[0]].append(test)
    rounds = [
        (place, lines[test], test)
        for functions in cases.values()
        for place, test in enumerate(functions)
    ]
    in_turn = _within(BUDGET_S / 2, MOST // 2, [test for _, _, test in sorted(rounds)], seconds)
    taken = sum(seconds[test] for test in in_turn)
    others = sorted(
        {test for _, _, test in rounds} - set(in_turn), key=lambda one: (seconds[one], one)
    )
    return (*in_turn, *_within(BUDGET_S - taken, MOST - len(in_turn), others, seconds))


def _within(
    left_s: float, most: int, tests: Iterable[str], seconds: Mapping[str, float]
) -> list[str]:
    """Return the first tests for which there is time, leaving out those that take too long."""
    selected: list[str] = []
    for test in tests:
        if seconds[test] <= left_s and len(selected) < most:
            selected.append(test)
            left_s -= seconds[test]
    return selected


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
