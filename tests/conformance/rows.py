"""What a comparison found: rows of a dialect's operator, attributes and type."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]

# How rows say that they hold all pairs of lengths.
UP_TO_64 = "all lengths up to 64"


@dataclass(slots=True)
class Row:
    """Cases of one operator, set of attributes and type, beside one peer.

    exact      how many have equal bits
    agree      how many are within the roundings that the peer is allowed, these included
    deviating  how many others a listed deviation explains
    error      the largest absolute difference among those that agree
    """

    peer: str
    operator: str
    attributes: str
    dtype: str
    cases: int = 0
    exact: int = 0
    agree: int = 0
    deviating: int = 0
    error: float = 0.0

    @property
    def wrong(self) -> int:
        """How many cases nothing explains."""
        return self.cases - self.agree - self.deviating


class Tally:
    """Rows in the order of their first cases."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str, str], Row] = {}

    def add(
        self,
        key: tuple[str, str, str, str],
        ours: Numbers,
        theirs: Numbers,
        *,
        allowed: Any = 0.0,
        deviates: Callable[[], bool] = lambda: False,
    ) -> None:
        """Count one case of (peer, operator, attributes, dtype)."""
        row = self._rows.setdefault(key, Row(*key))
        row.cases += 1
        same = ours.shape == theirs.shape
        difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) if same else None
        if difference is not None and np.all(difference <= allowed):
            row.exact += not difference.any()
            row.agree += 1
            row.error = max(row.error, float(difference.max(initial=0)))
        else:
            row.deviating += deviates()

    def rows(self) -> list[Row]:
        """Return all rows."""
        return list(self._rows.values())

    def check(self) -> None:
        """Raise AssertionError where nothing was compared, or nothing explains a case."""
        assert self._rows
        assert [row for row in self._rows.values() if row.wrong] == []


@dataclass(frozen=True, slots=True)
class Section:
    """A framework's part of the report.

    packages  what must be installed, by the names of `version`; its deviations have these. None
              where nothing of the framework can run, and a formula of its documents stands for it
    about     what is compared, and which differences count as roundings
    """

    title: str
    packages: tuple[str, ...]
    page: str
    about: str
    rows: Callable[[], list[Row]] = field(repr=False)


# Names of releases where they are not the framework's own.
_RELEASES = {"onednn": ("onednn-cpu-gomp",), "tensorflow": ("tensorflow-cpu", "tensorflow")}


def version(framework: str) -> str | None:
    """Return a framework's release, None where it is not installed."""
    for release in _RELEASES.get(framework, (framework,)):
        try:
            return importlib.metadata.version(release)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
