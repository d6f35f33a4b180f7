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

from dialect_oracles import Matrix, lowered
from gradwire import ops

DATA = Path(__file__).with_name("data")


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
    """Return our matrix along one axis of a tensor whose other axes have one element."""
    shapes = [[1] * rank, [1] * rank]
    shapes[0][axis], shapes[1][axis] = case.inputs, case.outputs
    source, result = (tuple(shape) for shape in shapes)
    for each in lowered(operator, source, result, dtype).passes:
        assert each.axis == axis
        return each.map.dense()
    return np.eye(case.outputs)


def save(name: str, about: dict[str, str], tables: Sequence[tuple[AxisCase, Matrix]]) -> None:
    """Write tests/data/NAME: versions, cases, and their matrices in float32."""
    cases = [[case.attributes, case.inputs, case.outputs] for case, _ in tables]
    flat = np.concatenate([matrix.astype(np.float32).ravel() for _, matrix in tables])
    text = json.dumps({**about, "cases": cases})
    np.savez_compressed(DATA / name, allow_pickle=False, about=np.array(text), flat=flat)


def load(name: str) -> Iterator[tuple[AxisCase, Matrix]]:
    """Read what save() wrote."""
    with np.load(DATA / name) as stored:
        flat, cases = stored["flat"].astype(np.float64), json.loads(str(stored["about"]))["cases"]
    first = 0
    for attributes, inputs, outputs in cases:
        size = inputs * outputs
        yield (
            AxisCase(attributes, inputs, outputs),
            flat[first : first + size].reshape(outputs, inputs),
        )
        first += size
    assert first == len(flat)


def sizes(generator: np.random.Generator, *, largest: int) -> tuple[int, int]:
    """Draw two lengths, short ones as likely as long ones."""
    exponents = generator.uniform(0, np.log(largest + 1), 2)
    inputs, outputs = np.exp(exponents).astype(int).tolist()
    return inputs, outputs
