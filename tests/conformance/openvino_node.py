"""OpenVINO's Interpolate-11: the reference implementation and the CPU plugin."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Row, Section, Tally
from gradwire import ops
from support.oracles import axis_tables, live_openvino
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix
from support.oracles.live_openvino import ROUNDINGS, TRANSFORMATIONS

_OPERATOR = "openvino_interpolate"
# The plugin multiplies by the reciprocal of scale: coordinates up to 60 move by units of 2**-18.
_PLUGIN = 2.0**-15
_IGNORED: dict[str, dict[str, Any]] = {
    "linear": {"antialias": False},
    "bicubic_pillow": {"cube_coeff": -0.5},
}


def _matrix(case: AxisCase) -> Matrix:
    operator = ops.OpenvinoInterpolate(**case.attributes)
    ours = axis_tables.axis_matrix(operator, case, rank=4, axis=2, dtype=np.float32)
    return ours.astype(np.float32).astype(np.float64)


def _words(case: AxisCase) -> str:
    mode, rule = case.attributes["mode"], case.attributes["coordinate_transformation_mode"]
    return mode if mode.endswith("pillow") else f"{mode}, {rule}"


def _deviates(case: AxisCase, theirs: Matrix) -> bool:
    """Tell whether the plugin has the table without what it ignores."""
    known = _IGNORED.get(case.attributes["mode"])
    if known is None:
        return False
    without = _matrix(replace(case, attributes=case.attributes | known))
    return bool(np.abs(without - theirs).max() <= _PLUGIN)


def _nearest(tally: Tally, attributes: dict[str, Any]) -> None:
    rule, rounding = attributes.values()
    words = f"nearest, {rule}, {rounding}, {UP_TO_64}"
    key = ("openvino: elements the reference reads", "openvino_interpolate", words, "float32")
    for inputs, outputs in axis_tables.lengths_up_to(64):
        operator = ops.OpenvinoInterpolate(mode="nearest", sizes=(outputs,), **attributes)
        read = live_openvino.reference(operator, np.arange(inputs, dtype=np.float32))
        case = AxisCase(attributes, inputs, outputs)
        tally.add(key, axis_tables.elements_read(operator, case), read)


def add_reference(tally: Tally) -> None:
    for case in live_openvino.cases(3000):
        theirs = live_openvino.table(live_openvino.reference, case)
        key = ("openvino: weights of the reference", _OPERATOR, _words(case), "float32")
        tally.add(key, _matrix(case), theirs)


def add_plugin(tally: Tally) -> None:
    for case in live_openvino.cases(300):
        theirs = live_openvino.table(live_openvino.plugin, case)
        key = ("openvino: weights of the CPU plugin", _OPERATOR, case.attributes["mode"], "float32")
        deviates = partial(_deviates, case, theirs)
        tally.add(key, _matrix(case), theirs, allowed=_PLUGIN, deviates=deviates)


def rows() -> list[Row]:
    """Compare with the installed OpenVINO."""
    tally = Tally()
    add_reference(tally)
    for rule, rounding in itertools.product(TRANSFORMATIONS, ROUNDINGS):
        _nearest(tally, {"coordinate_transformation_mode": rule, "nearest_mode": rounding})
    add_plugin(tally)
    return sorted(tally.rows(), key=lambda row: (row.peer, row.attributes))


SECTION = Section(
    "OpenVINO",
    ("openvino",),
    "dialects/openvino.md",
    "Weights are read off one-hot images of up to 60 elements with padding up to 3. Those of the"
    " reference implementation must have equal bits, those of the CPU plugin be within 2**-15."
    " What `nearest` reads in the reference must be equal at all pairs of lengths up to 64 by each"
    " of the five coordinates and five roundings."
    " OpenVINO has no gradients: `openvino_interpolate_grad` is the transpose of these tables.",
    rows,
)
