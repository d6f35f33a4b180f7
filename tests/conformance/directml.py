"""DirectML's resampling: the formula it documents, one scalar at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Row, Section, Tally
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import DML_RULES, axis_table, dml_axis, dml_operators

_PIXEL_CENTERS = (0.5, -0.5)
_FORMULA = "DirectML: the documented formula"


def _random(generator: np.random.Generator, rule: str) -> AxisCase:
    """Draw lengths, a scale that is often not their ratio, and offsets."""
    inputs, outputs = axis_tables.sizes(generator, largest=300)
    ratio = generator.choice([outputs / inputs, np.exp(generator.uniform(-3, 3))])
    offsets = generator.choice([0.0, 0.5, -0.5, generator.uniform(-4, 4)], 2)
    values = np.array([ratio, *offsets], np.float32).tolist()
    return AxisCase({"rule": rule, "scale": values[0], "offsets": values[1:]}, inputs, outputs)


def _add(tally: Tally, case: AxisCase, words: str = "") -> None:
    rule, scale, offsets = (case.attributes[name] for name in ("rule", "scale", "offsets"))
    expected = dml_axis(case.inputs, case.outputs, scale=scale, offsets=offsets, rule=rule)
    arrays: dict[str, Any] = {
        "scales": (scale,),
        "input_pixel_offsets": offsets[:1],
        "output_pixel_offsets": offsets[1:],
    }
    mode = rule if rule == "linear" else f"nearest, {rule}"
    for pair in dml_operators(rule, **arrays):
        for operator, table in (
            (pair.forward, axis_table(pair.forward, (case.inputs,), (case.outputs,))),
            (pair.gradient, axis_table(pair.gradient, (case.outputs,), (case.inputs,)).T),
        ):
            tally.add((_FORMULA, operator.name, mode + words, "float32"), table, expected)


def rows() -> list[Row]:
    """Compare with the formula."""
    generator, tally = np.random.default_rng(9), Tally()
    for number in range(1000):
        _add(tally, _random(generator, list(DML_RULES)[number % len(DML_RULES)]))
    for rule in (each for each in DML_RULES if each != "linear"):
        for inputs, outputs in axis_tables.lengths_up_to(64):
            scale = float(np.float32(outputs) / np.float32(inputs))
            attributes = {"rule": rule, "scale": scale, "offsets": _PIXEL_CENTERS}
            _add(tally, AxisCase(attributes, inputs, outputs), f", {UP_TO_64}")
    return sorted(tally.rows(), key=lambda row: row.operator)


SECTION = Section(
    "DirectML",
    (),
    "dialects/directml.md",
    "Nothing of DirectML ran: it is closed and runs on Windows only. Weights are compared with the"
    " formula it documents, evaluated one float32 scalar at a time; their bits must be equal, and"
    " below *exact* means equal to the formula. Its published examples and results of real devices"
    " are tests: [test_dml.py](../tests/dialects/test_dml.py).",
    rows,
)
