"""What a dialect brings to the tests: one table, which every test of all dialects goes through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from gradwire import ops
from support.oracles.dialect_oracles import Matrix, Pair, Shape, Tensor, evaluate, lowered
from support.oracles.oracles import covered

__all__ = ["Case", "Example", "Shape", "Table", "shapes"]


@dataclass(frozen=True, slots=True)
class Example:
    """One call of an operator, small enough for any way there is to call it.

    source    shape of what is sent
    result    shape of what comes back
    expected  result for an input of 1, 2, 3 ... in float32, where a reader can check it
    """

    operator: ops.Operator
    source: Shape
    result: Shape
    expected: object = None

    def given(self, dtype: np.dtype[np.generic] | type = np.float32) -> Tensor:
        """Return 1, 2, 3 ... in this shape."""
        return np.arange(1, 1 + np.prod(self.source)).reshape(self.source).astype(dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its gradient, and the two shapes they run between.

    nearest   whether every output reads one input with a weight of 1
    rounding  how far the weights of an output may be from a sum of 1; None where they need not be
    """

    pair: Pair
    source: Shape
    result: Shape
    nearest: bool
    rounding: float | None = 2.0**-25

    def forward(self, x: Tensor) -> Tensor:
        return evaluate(self.pair.forward, x, self.result)

    def gradient(self, g: Tensor) -> Tensor:
        return evaluate(self.pair.gradient, g, self.source)

    def bands(self, dtype: npt.DTypeLike) -> list[npt.NDArray[np.bool_]]:
        """Tell along each axis which inputs the band of each output covers, zeros and all."""
        return self._along_each_axis(covered, bool, dtype)

    def matrices(self, dtype: npt.DTypeLike = np.float64) -> list[Matrix]:
        return self._along_each_axis(lambda bands: bands.dense(), np.float64, dtype)

    def _along_each_axis(self, of: Any, kind: Any, dtype: npt.DTypeLike) -> list[Any]:
        found: list[Any] = [np.eye(size, dtype=kind) for size in self.source]
        for each in lowered(self.pair.forward, self.source, self.result, dtype).passes:
            found[each.axis] = of(each.map)
        return found


@dataclass(frozen=True, slots=True)
class Table:
    """One dialect.

    page      its page in docs/
    examples  calls that go every way there is, at least one of each operator
    cases     what the laws of all gradients are tested on
    golden    messages of its own, as golden_bytes.py has them
    """

    page: str
    examples: list[Example]
    cases: st.SearchStrategy[Case]
    golden: str = ""


def shapes(rank: int) -> st.SearchStrategy[Shape]:
    """Short axes, fewer elements, up to 600, the more of them there are."""
    longest = max(2, int(600 ** (1 / rank)))
    return st.lists(st.integers(1, longest), min_size=rank, max_size=rank).map(tuple)
