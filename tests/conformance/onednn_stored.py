"""oneDNN's gradients: results of the library that are stored, since no Python package has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.rows import Row, Section, Tally
from dialect_oracles import ulp
from dialects import test_onednn_library as library


def rows() -> list[Row]:
    """Compare with the stored results."""
    tally = Tally()
    for case, diff_dst, expected in library.library_results():
        dtype: Any = library.DTYPES[case.dtype]
        terms = library.transpose(case.taps(), np.abs(diff_dst))
        allowed = 2.0**-21 * terms
        if case.dtype != "f32":
            allowed = 2.0**-8 * terms + ulp(expected, dtype) / 2
        key = ("oneDNN 3.2, stored", "interpolate_backward", case.mode, dtype.name)
        tally.add(key, case.evaluate(diff_dst.astype(dtype)), expected, allowed=allowed)
    return tally.rows()


SECTION = Section(
    "oneDNN",
    {},
    "operators.md",
    "Whole gradients of the library's benchmark cases, within the roundings of sums. Cases whose"
    " nearest gradient the library itself gets wrong are not among them: see the deviation.",
    rows,
)
