"""What a comparison found: rows of a dialect's operator, attributes and type."""

from __future__ import annotations

import importlib.metadata
import itertools
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
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
    """Rows of what is compared; brief leaves out some of what takes minutes, as tests do."""

    def __init__(self, *, brief: bool = False) -> None:
        self.brief = brief
        self._rows: dict[tuple[str, str, str, str], Row] = {}

    def lengths(self) -> Iterator[tuple[int, int]]:
        """Return all pairs of lengths up to 64."""
        lengths = range(1, 25 if self.brief else 65)
        return itertools.product(lengths, lengths)

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
        return sorted(self._rows.values(), key=lambda row: (row.peer, row.operator))


TOLD = tomllib.loads(Path(__file__).with_name("deviations.toml").read_text())


@dataclass(frozen=True, slots=True)
class Section:
    """A framework's part of the report, with words of deviations.toml.

    packages  what must be installed, by the names of `version`; its deviations have these. None
              where nothing of the framework can run, and a formula of its documents stands for it
    about     what is compared, and which differences count as roundings
    """

    title: str
    compare: Callable[[Tally], None]
    packages: list[str]
    page: str
    about: str

    @classmethod
    def of(cls, title: str, compare: Callable[[Tally], None]) -> Section:
        return cls(title, compare, **TOLD["section"][title])


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
