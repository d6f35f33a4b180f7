"""One axis of a framework's operator as a dense matrix: stored, and by this code.

The matrices are of the forward, [outputs, inputs], read off the framework by one-hot tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire import ops
from support.oracles.dialect_oracles import Matrix, axis_map, axis_table

DATA = Path(__file__).parents[2] / "data"


@dataclass(frozen=True, slots=True)
class AxisCase:
    """Attributes of an operator, and the lengths of one axis in the forward's direction."""

    attributes: dict[str, Any]
    inputs: int
    outputs: int

    def __str__(self) -> str:
        words = (f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.inputs}-to-{self.outputs}-{'-'.join(words)}"


def axis_matrix(
    operator: ops.Operator, case: AxisCase, *, rank: int, axis: int, dtype: npt.DTypeLike
) -> Matrix:
    before, after = (1,) * axis, (1,) * (rank - axis - 1)
    shapes = (*before, case.inputs, *after), (*before, case.outputs, *after)
    return axis_table(operator, *shapes, axis, dtype)


def elements_read(operator: ops.Operator, case: AxisCase) -> npt.NDArray[np.int64]:
    """Return the one element that each output reads with a weight of 1, -1 for one that reads none.

    Raises AssertionError where an output reads several, or another weight.
    """
    found = axis_map(operator, (case.inputs,), (case.outputs,))
    if found is None:
        return np.arange(case.outputs)
    counts = np.diff(found.offset)
    assert set(counts.tolist()) <= {0, 1}
    assert np.all(found.weight == 1)
    return np.where(counts == 1, found.start, -1)


def save(name: str, about: dict[str, str], tables: Sequence[tuple[AxisCase, Matrix]]) -> None:
    """Write tests/data/NAME: versions, cases, and their matrices in float32."""
    cases = [[case.attributes, case.inputs, case.outputs] for case, _ in tables]
    flat = np.concatenate([matrix.astype(np.float32).ravel() for _, matrix in tables])
    text = json.dumps({**about, "cases": cases})
    np.savez_compressed(DATA / name, allow_pickle=False, about=np.array(text), flat=flat)


def load(name: str) -> Iterator[tuple[AxisCase, Matrix]]:
    with np.load(DATA / name) as stored:
        flat, cases = stored["flat"].astype(np.float64), json.loads(str(stored["about"]))["cases"]
    for attributes, inputs, outputs in cases:
        table, flat = np.split(flat, [inputs * outputs])
        yield AxisCase(attributes, inputs, outputs), table.reshape(outputs, inputs)
    assert not len(flat)


def sizes(generator: np.random.Generator, *, largest: int) -> tuple[int, int]:
    """Draw two lengths, short ones as likely as long ones."""
    exponents = generator.uniform(0, np.log(largest + 1), 2)
    inputs, outputs = np.exp(exponents).astype(int).tolist()
    return inputs, outputs
