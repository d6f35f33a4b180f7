"""The NumPy backend: the specification of all backends.

One pass gives every output the sum of its taps in ascending order:

    y = w[0] * x[0];   y = y + w[1] * x[1];   ...

Weights are rounded to the compute type once, and every product and sum is rounded to it. The first
tap assigns, so that no zero is added to it; zero taps are not skipped; nothing is fused or
reordered. Between passes values stay in the compute type. The result is rounded once, at the end,
to nearest even; values too large for the storage type become infinite.

Other backends may compute in any way that gives these bits. (All NaNs are equal here.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.plans import BandedMap, Plan, fill_empty

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

# Outputs of equal counts are computed together if they form at most this many groups.
_FEW_GROUPS = 8

# Products of one long band held at once, in elements.
_BLOCK = 1 << 18


def compute_dtype(storage: npt.DTypeLike) -> np.dtype[Any]:
    """Return the compute type of a storage type.

    It is float64 for float64, otherwise float32.
    """
    return np.dtype(np.float64 if np.dtype(storage) == np.float64 else np.float32)


class NumpyCpu:
    """Applies plans on the calling thread. It is stateless, hence thread-safe."""

    name = "numpy_cpu"
    splits_work = False
    may_wait = False

    def warm_up(self) -> None:
        """Do nothing: nothing is compiled."""

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as `Backend` specifies.

        The last pass writes directly to y if y has the compute type.
        """
        with np.errstate(all="ignore"):
            if plan.passes:
                x = x.astype(compute_dtype(x.dtype), copy=False)
            for index, one in enumerate(plan.passes, 1):
                shape = (*x.shape[: one.axis], one.map.outputs, *x.shape[one.axis + 1 :])
                last = index == len(plan.passes) and y.dtype == x.dtype
                z = y if last else np.empty(shape, x.dtype)
                self.accumulate(one.map, x, z, axis=one.axis, carried=0)
                x = z
            if x is not y:
                np.copyto(y, x, casting="unsafe")
        fill_empty(plan.passes, y, fill=plan.fill)

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y in place.

        x        bands.inputs long on the axis, compute type, any strides
        y        bands.outputs long on the axis, otherwise as x
        carried  number of outputs, from the first, that hold a partial sum; for the others the
                 first tap assigns, and they are +0 without taps
        """
        with np.errstate(all="ignore"):
            weight = bands.weight.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
            x, y = np.moveaxis(np.ascontiguousarray(x), axis, 0), np.moveaxis(y, axis, 0)
            for first, stop in _groups(bands.counts, carried):
                some = slice(first, stop)
                start, offset, counts = bands.start[some], bands.offset[some], bands.counts[some]
                taps = _Taps(x, axis, weight, start, offset, counts)
                _accumulate(taps, y[some], assign=first >= carried)


class _Taps(NamedTuple):
    """The taps of some outputs on x, along its first axis.

    axis    where the axis is in memory
    weight  all weights of the map, in x's type, shaped to multiply slices of x
    start   first input of each output
    offset  index of each output's first weight
    counts  number of taps of each output
    """

    x: Array
    axis: int
    weight: Array
    start: Indices
    offset: Indices
    counts: Indices

    def products(self, tap: int, outputs: int) -> Array:
        """Return one tap of each of the first outputs.

        It may be a view of x if all weights are 1.
        """
        index = self.start[:outputs] + tap
        step = index[1] - index[0] if len(index) > 1 else 1
        if step > 0 and (index[1:] - index[:-1] == step).all():
            data = self.x[index[0] : index[-1] + 1 : step]
        else:
            data = _take(self.x, index, self.axis)
        weight = self.weight[self.offset[:outputs] + tap]
        return data if (weight == 1).all() else data * weight


def _groups(counts: Indices, carried: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of outputs, all carried or none of them.

    If few ranges result, outputs of a range also have equal counts.
    """
    changes = np.flatnonzero(counts[1:] != counts[:-1]) + 1
    few = changes.tolist() if len(changes) < _FEW_GROUPS else []
    return pairwise(sorted({0, carried, *few, len(counts)}))


def _take(x: Array, index: Indices, axis: int) -> Array:
    """Return a copy of x[index].

    It has the order of x in memory, where the first axis is `axis`.
    """
    # All indices are in range; mode="clip" takes half the time of the check.
    some = np.moveaxis(x, 0, axis).take(index, axis=axis, mode="clip")
    return np.moveaxis(some, axis, 0)


def _accumulate(taps: _Taps, y: Array, *, assign: bool) -> None:
    """Add the taps to y, or assign the first ones."""
    if (taps.counts == taps.counts[0]).all():
        _sum(taps, y, assign=assign)
        return
    # Longest first, so that the outputs with one more tap are always a slice.
    order = np.argsort(-taps.counts, kind="stable")
    start, offset, counts = taps.start[order], taps.offset[order], taps.counts[order]
    sums = _take(y, order, taps.axis)
    _sum(taps._replace(start=start, offset=offset, counts=counts), sums, assign=assign)
    y[...] = _take(sums, np.argsort(order), taps.axis)


def _sum(taps: _Taps, y: Array, *, assign: bool) -> None:
    """Add the taps to y, or assign the first ones; counts descend.

    Work tap by tap for all outputs that have it, then band by band for the few that have more. With
    K the least number such that at most K outputs have more than K taps, it takes at most 2 * K
    rounds.
    """
    longer = len(taps.counts) - np.cumsum(np.bincount(taps.counts))  # [t]: with more than t taps
    rounds = int(np.argmax(longer <= np.arange(len(longer))))
    if assign:
        y[longer[0] :] = 0
    for tap, outputs in enumerate(longer[:rounds].tolist()):
        if assign and tap == 0:
            y[:outputs] = taps.products(tap, outputs)
        else:
            y[:outputs] += taps.products(tap, outputs)
    for output in range(longer[rounds]):
        _add_band(taps, y, output, first_tap=rounds)


def _add_band(taps: _Taps, y: Array, output: int, *, first_tap: int) -> None:
    """Add the taps of one output from first_tap on.

    Blocks of bounded size bound temporary memory.
    """
    start, offset, count = taps.start[output], taps.offset[output], int(taps.counts[output])
    block = max(1, _BLOCK // max(1, y[output].size))
    for first in range(first_tap, count, block):
        stop = min(first + block, count)
        data = taps.x[start + first : start + stop]
        products = data * taps.weight[offset + first : offset + stop]
        products[0] += y[output]
        # accumulate() adds sequentially; sum() adds pairwise.
        y[output] = np.add.accumulate(products, axis=0)[-1]
