"""One axis of a framework's operator as a dense matrix: stored, and by this code.

The matrices are of the forward, [outputs, inputs], read off the framework by one-hot tensors.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire import ops
from gradwire_server.plans import BandedMap
from support.oracles.dialect_oracles import Matrix, lowered

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
    found = _axis_map(operator, case, rank=rank, axis=axis, dtype=dtype)
    return np.eye(case.outputs) if found is None else found.dense()


def elements_read(
    operator: ops.Operator,
    case: AxisCase,
    *,
    rank: int = 1,
    axis: int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> npt.NDArray[np.int64]:
    """Return the one element that each output reads with a weight of 1, -1 for one that reads none.

    Raises AssertionError where an output reads several, or another weight.
    """
    found = _axis_map(operator, case, rank=rank, axis=axis, dtype=dtype)
    if found is None:
        return np.arange(case.outputs)
    counts = np.diff(found.offset)
    assert set(counts.tolist()) <= {0, 1}
    assert np.all(found.weight == 1)
    return np.where(counts == 1, found.start, -1)


def _axis_map(
    operator: ops.Operator, case: AxisCase, *, rank: int, axis: int, dtype: npt.DTypeLike
) -> BandedMap | None:
    shapes = [[1] * rank, [1] * rank]
    shapes[0][axis], shapes[1][axis] = case.inputs, case.outputs
    source, result = (tuple(shape) for shape in shapes)
    for each in lowered(operator, source, result, dtype).passes:
        assert each.axis == axis
        return each.map
    return None


def save(name: str, about: dict[str, str], tables: Sequence[tuple[AxisCase, Matrix]]) -> None:
    """Write tests/data/NAME: versions, cases, and their matrices in float32."""
    cases = [[case.attributes, case.inputs, case.outputs] for case, _ in tables]
    flat = np.concatenate([matrix.astype(np.float32).ravel() for _, matrix in tables])
    text = json.dumps({**about, "cases": cases})
    np.savez_compressed(DATA / name, allow_pickle=False, about=np.array(text), flat=flat)


def load(name: str) -> Iterator[tuple[AxisCase, Matrix]]:
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


def lengths_up_to(largest: int) -> Iterator[tuple[int, int]]:
    lengths = range(1, largest + 1)
    return itertools.product(lengths, lengths)


def sizes(generator: np.random.Generator, *, largest: int) -> tuple[int, int]:
    """Draw two lengths, short ones as likely as long ones."""
    exponents = generator.uniform(0, np.log(largest + 1), 2)
    inputs, outputs = np.exp(exponents).astype(int).tolist()
    return inputs, outputs
