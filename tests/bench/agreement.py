"""Whether contestants computed the same: ours bit for bit, peers within rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.cases import Array
from bench.contestants import Contestant

# Of the largest value. Peers round coordinates elsewhere, and some round sums to the storage type.
_TOLERANCES = {"float32": 5e-4, "float16": 4e-3, "bfloat16": 3e-2}


class WrongResultError(Exception):
    """Two of our backends differ, or our layouts do."""


def check_ours(ours: Sequence[Contestant]) -> Array:
    """Return our result; raises WrongResultError where it is not the same everywhere."""
    results = [one.result for one in ours if one.result is not None]
    expected = results[-1]
    bits = f"u{expected.dtype.itemsize}"
    for one, result in zip(ours, results, strict=True):
        if not np.array_equal(result.view(bits), expected.view(bits)):
            raise WrongResultError(f"the results of {one.name} and {ours[-1].name} differ")
    return expected


def differing(peers: Sequence[Contestant], expected: Array) -> dict[str, str]:
    """Say which peers computed something else, and how far off they are."""
    wide = _widened(expected)
    allowed = _TOLERANCES[expected.dtype.name] * float(np.abs(wide).max())
    found: dict[str, str] = {}
    for one in peers:
        if one.result is None:
            continue
        apart_each = _widened(one.result).reshape(wide.shape) - wide
        apart = float(np.abs(apart_each, out=apart_each).max())
        if not apart <= allowed:
            found[one.name] = f"its result is {apart:.3g} away from ours; {allowed:.3g} is rounding"
    return found


def _widened(array: Array) -> Array:
    """Convert to float32; a bfloat16 is the upper half of one, and NumPy's own way is slow."""
    if array.dtype.name != "bfloat16":
        return array.astype(np.float32)
    bits = array.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)
