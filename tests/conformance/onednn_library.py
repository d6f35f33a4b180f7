"""oneDNN's resampling: weights of the installed library, and whole gradients that are stored."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Row, Section, Tally
from dialects import test_onednn as library
from gradwire import ops
from support.oracles import axis_tables, live_onednn
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix, ulp


def _matrix(case: AxisCase) -> Matrix:
    attributes: dict[str, Any] = {**case.attributes, "data_format": "NCX"}
    operator = ops.Interpolate(sizes=(case.outputs,), **attributes)
    return axis_tables.axis_matrix(operator, case, rank=3, axis=2, dtype=np.float32)


def _deviates(case: AxisCase, theirs: Matrix) -> bool:
    """Tell whether the gradient only has ties one element low, as is listed."""
    nearest = case.attributes["mode"] == "nearest" and case.attributes["data_format"] == "NXC"
    ours = _matrix(case)
    moved = np.flatnonzero((ours != theirs).any(axis=1))
    low = np.array_equal(theirs[moved, :-1], ours[moved, 1:])
    x = ((2 * moved + 1) * case.inputs) / (2 * case.outputs)
    return nearest and low and bool(np.all(x == np.floor(x)))


def add(tally: Tally, case: AxisCase, words: str = "") -> None:
    """Compare the tables of a case, and those of its gradient, in each type."""
    ours = _matrix(case)
    mode, data_format = case.attributes["mode"], case.attributes["data_format"]
    for name, dtype in live_onednn.DTYPES.items():
        if name == "bfloat16" and not live_onednn.has_avx512():
            continue
        for operator, table in live_onednn.TABLES.items():
            theirs = table(case, name)
            deviates = partial(_deviates, case, theirs)
            tally.add(
                ("oneDNN: weights", operator, f"{mode}, {data_format}{words}", name),
                ours.astype(dtype),
                theirs,
                deviates=deviates if operator == "interpolate_backward" else lambda: False,
            )


def _stored(tally: Tally) -> None:
    for case, diff_dst, expected in library.library_results():
        dtype: Any = library.DTYPES[case.dtype]
        terms = library.transpose(case.taps(), np.abs(diff_dst))
        allowed = 2.0**-21 * terms
        if case.dtype != "f32":
            allowed = 2.0**-8 * terms + ulp(expected, dtype) / 2
        key = ("oneDNN: whole gradients, stored", "interpolate_backward", case.mode, dtype.name)
        tally.add(key, case.evaluate(diff_dst.astype(dtype)), expected, allowed=allowed)


def rows() -> list[Row]:
    """Compare with the installed library and with stored results."""
    tally = Tally()
    for case in live_onednn.cases(1200):
        add(tally, case)
    for data_format in live_onednn.FORMATS:
        for lengths in axis_tables.lengths_up_to(64):
            attributes = {"mode": "nearest", "data_format": data_format}
            add(tally, AxisCase(attributes, *lengths), f", {UP_TO_64}")
    _stored(tally)
    return sorted(tally.rows(), key=lambda row: (row.peer, row.operator))


SECTION = Section(
    "oneDNN",
    ("onednn",),
    "dialects/onednn.md",
    "Weights of the resampling primitives, which the graph's operations run, are read off one-hot"
    " channels of up to 300 elements in both layouts; their bits must be equal, in bfloat16 after"
    " the one rounding. Stored are whole gradients of the library's own benchmark cases, 1 to 3"
    " spatial axes: they must agree within the roundings of sums.",
    rows,
)
