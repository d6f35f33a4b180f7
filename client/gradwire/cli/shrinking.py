"""From a case that fails to the smallest one that fails alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradwire.cli.check_cases import Case, Pair
from gradwire.cli.trials import Failure, Unfit

# Elements up to which each one is tried alone, or left out.
FEW = 64

# Inputs and outputs together up to which all pairs of lengths are tried.
SMALL = 12


@dataclass(slots=True)
class Shrinker:
    """Tries smaller cases while there are tries left."""

    trial: Callable[[Case], Failure | None]
    tries: int = 1000

    def __call__(self, failure: Failure) -> Failure:
        """Return a failure of the same kind, at most as large."""
        smaller = True
        while smaller:
            smaller = False
            for candidates in (_plainer, _smaller):
                found = self._first(candidates(failure.case), failure)
                if found is not None:
                    failure, smaller = found, True
        return self._fewer_values(failure)

    def _first(self, cases: Iterator[Case], failure: Failure) -> Failure | None:
        """Return the first of some cases that fails as another one does."""
        for case in cases:
            if self.tries <= 0:
                return None
            self.tries -= 1
            try:
                found = self.trial(case)
            except Unfit:
                continue
            if found is not None and found.kind == failure.kind:
                return found
        return None

    def _fewer_values(self, failure: Failure) -> Failure:
        """Keep one element that is not 0, or as few as do; 1 where that is enough."""
        given = failure.given.astype(np.float64).ravel()
        if len(given) > FEW:
            return failure
        ones = [1.0] * len(given)
        alone = (
            tuple(value if other == place else 0.0 for other in range(len(given)))
            for values in (ones, given.tolist())
            for place, value in enumerate(values)
        )
        found = self._first((replace(failure.case, given=values) for values in alone), failure)
        if found is not None:
            return found
        kept = [float(value) for value in given]
        for place, value in enumerate(kept):
            for simpler in (0.0, 1.0):
                if value == simpler:
                    break
                values = (*kept[:place], simpler, *kept[place + 1 :])
                found = self._first(iter([replace(failure.case, given=values)]), failure)
                if found is not None:
                    failure, kept = found, list(values)
                    break
        return failure


def _plainer(case: Case) -> Iterator[Case]:
    """Yield a case with one thing made plain."""
    if case.layout != "contiguous":
        yield replace(case, layout="contiguous")
    if case.values not in {"ones", "counting"}:
        yield replace(case, values="counting")
    if str(case.dtype) != "float32":
        yield replace(case, dtype=np.dtype(np.float32))
    if case.batch != (1, 1):
        yield replace(case, batch=(1, 1))
        yield replace(case, batch=(1, case.batch[1]))
        yield replace(case, batch=(case.batch[0], 1))
        yield replace(case, batch=(min(2, case.batch[0]), min(2, case.batch[1])))


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with one spatial axis shorter, the shortest first."""
    for axis, pair in enumerate(case.spatial):
        for shorter in _pairs_below(pair):
            yield replace(case, spatial=(*case.spatial[:axis], shorter, *case.spatial[axis + 1 :]))


def _pairs_below(pair: Pair) -> Iterator[Pair]:
    """Yield pairs of fewer elements together: all small ones, then halves, then one less."""
    total = sum(pair)
    for size in range(2, min(total, SMALL + 1)):
        for inputs in range(1, size):
            yield inputs, size - inputs
    halves = (-(-pair[0] // 2), -(-pair[1] // 2))
    for shorter in (
        halves,
        (pair[0] - 1, pair[1] - 1),
        (pair[0] - 1, pair[1]),
        (pair[0], pair[1] - 1),
    ):
        if min(shorter) >= 1 and SMALL < sum(shorter) < total:
            yield shorter
