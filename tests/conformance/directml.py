"""DirectML's resampling: the formula it documents, one scalar at a time."""

from __future__ import annotations

import numpy as np

from conformance.rows import UP_TO_64, Section, Tally
from support.oracles.dialect_oracles import (
    DML_RULES,
    axis_table,
    dml_axis,
    dml_operators,
    draw_sizes,
)

_FORMULA = "DirectML: the documented formula"


def _add(
    tally: Tally, rule: str, lengths: tuple[int, int], values: list[float], words: str = ""
) -> None:
    inputs, outputs = lengths
    scale, *(first, second) = values
    expected = dml_axis(inputs, outputs, scale=scale, offsets=(first, second), rule=rule)
    mode = rule if rule == "linear" else f"nearest, {rule}"
    for pair in dml_operators(rule, scales=(scale,), offsets=(first, second)):
        for operator, table in (
            (pair.forward, axis_table(pair.forward, (inputs,), (outputs,))),
            (pair.gradient, axis_table(pair.gradient, (outputs,), (inputs,)).T),
        ):
            tally.add((_FORMULA, operator.name, mode + words, "float32"), table, expected)


def _compare(tally: Tally) -> None:
    """Take lengths, scales that are often not their ratio, and offsets."""
    generator = np.random.default_rng(9)
    for number in range(1000):
        inputs, outputs = draw_sizes(generator, largest=300)
        ratio = generator.choice([outputs / inputs, np.exp(generator.uniform(-3, 3))])
        offsets = generator.choice([0.0, 0.5, -0.5, generator.uniform(-4, 4)], 2)
        values = np.array([ratio, *offsets], np.float32).tolist()
        _add(tally, list(DML_RULES)[number % len(DML_RULES)], (inputs, outputs), values)
    for rule in (each for each in DML_RULES if each != "linear"):
        for inputs, outputs in tally.lengths():
            scale = float(np.float32(outputs) / np.float32(inputs))
            _add(tally, rule, (inputs, outputs), [scale, 0.5, -0.5], f", {UP_TO_64}")


SECTION = Section(
    "DirectML",
    (),
    "dialects/directml.md",
    "Nothing of DirectML ran: it is closed and runs on Windows only. Weights are compared with the"
    " formula it documents, evaluated one float32 scalar at a time; their bits must be equal, and"
    " below *exact* means equal to the formula. Its published examples and results of real devices"
    " are tests: [test_dml.py](../tests/dialects/test_dml.py).",
    _compare,
)
