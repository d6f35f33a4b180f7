"""Tables of an operator's axes, and the terms of one element of a result.

The server package of this installation computes the tables, in a child process, so that the command
line never imports the server.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import v1
from gradwire._wire.statuses import from_in_band
from gradwire.cli.exits import CommandError
from gradwire.cli.output import as_json, middle_left_out, number, table
from gradwire.ops import OPERATORS, Operator, to_message
from gradwire.tensors import data_type_of

PACKAGE = "gradwire_server"
MODULE = f"{PACKAGE}.rpc.axis_tables"

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]


# Not slotted: cached properties need a dict.
@dataclass(frozen=True, eq=False)
class AxisTable:
    """One axis of an operator's forward: output o is a weighted sum of some inputs side by side.

    inputs, outputs  lengths in the forward's direction
    start            int64[outputs], first input that each output reads
    offset           int64[outputs + 1]: output o has weight[offset[o]:offset[o + 1]]
    weight           float64[nnz], exact
    coordinates      floating[outputs], where each output reads; None where the dialect tells none
    """

    inputs: int
    outputs: int
    start: Indices
    offset: Indices
    weight: Weights
    coordinates: NDArray[np.floating[Any]] | None

    def read_by(self, output: int) -> tuple[Indices, Weights]:
        """Return the inputs that an output reads, ascending, and their weights."""
        weights = self.weight[self.offset[output] : self.offset[output + 1]]
        return self.start[output] + np.arange(len(weights)), weights

    def feeding(self, input_: int) -> tuple[Indices, Weights]:
        """Return the outputs that read an input, ascending, and its weights in them."""
        chosen = self._by_column[self._bounds[input_] : self._bounds[input_ + 1]]
        return self.rows[chosen], self.weight[chosen]

    @cached_property
    def rows(self) -> Indices:
        """Output of each weight: int64[nnz]."""
        return np.repeat(np.arange(self.outputs), np.diff(self.offset))

    @cached_property
    def columns(self) -> Indices:
        """Input of each weight: int64[nnz]."""
        return np.arange(len(self.weight)) + (self.start - self.offset[:-1])[self.rows]

    @cached_property
    def totals(self) -> Weights:
        """Total weight of each input: float64[inputs], the gradient of ones."""
        return np.bincount(self.columns, self.weight, self.inputs).astype(np.float64, copy=False)

    @cached_property
    def unread(self) -> Indices:
        """Inputs that no output reads."""
        return np.flatnonzero(np.diff(self._bounds) == 0)

    @cached_property
    def is_identity(self) -> bool:
        """Whether every output is the input of its own index."""
        whole = self.inputs == self.outputs == len(self.weight)
        return whole and bool((self.columns == self.rows).all() and (self.weight == 1).all())

    def equals(self, other: AxisTable) -> bool:
        """Whether both have the same numbers."""
        if (self.coordinates is None) is not (other.coordinates is None):
            return False
        names = [
            "start",
            "offset",
            "weight",
            *([] if self.coordinates is None else ["coordinates"]),
        ]
        sides = (self.inputs, self.outputs) == (other.inputs, other.outputs)
        return sides and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )

    @cached_property
    def _by_column(self) -> Indices:
        return np.argsort(self.columns, kind="stable")

    @cached_property
    def _bounds(self) -> Indices:
        counts = np.bincount(self.columns, minlength=self.inputs)
        return np.concatenate([[0], np.cumsum(counts)])


@dataclass(frozen=True, slots=True)
class Call:
    """A call without its data; output_shape is None if attributes determine it."""

    operator: Operator
    dtype: np.dtype[Any]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Tables:
    """Output and axis tables of a call.

    output_shape  of its result
    fill          what an element of a forward's result is that reads nothing along some axis
    axes          the forward's table along each axis
    """

    output_shape: tuple[int, ...]
    fill: float
    axes: tuple[AxisTable, ...]


def tables(calls: Sequence[Call]) -> list[Tables]:
    """Return the tables of calls; raise the error of evaluating the first bad one."""
    if find_spec(PACKAGE) is None:
        raise CommandError(f"the tables of an operator need the package {PACKAGE} here")
    headers = [base64.b64encode(_header(call)).decode() for call in calls]
    done = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-m", MODULE],
        input=json.dumps(headers).encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        reason = words[-1] if words else f"code {done.returncode}"
        raise CommandError(f"the tables could not be computed: {reason}")
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as arrays:
        if "error" in arrays:
            raise from_in_band(v1.Error.FromString(arrays["error"].tobytes()))
        facts = json.loads(arrays["facts"].tobytes())
        return [_read(arrays, call, fact) for call, fact in enumerate(facts)]


def forward_name(operator: Operator) -> str:
    """Return the name of the forward whose tables an operator has."""
    kind = OPERATORS[operator.name]
    return kind.counterpart if kind.gradient else kind.name


def _header(call: Call) -> bytes:
    header = v1.EvaluateRequest(operator=to_message(call.operator))
    data_type = data_type_of(call.dtype)
    header.input.CopyFrom(v1.TensorDescriptor(data_type=data_type, sizes=call.input_shape))
    if call.output_shape is not None:
        header.output.CopyFrom(v1.TensorDescriptor(data_type=data_type, sizes=call.output_shape))
    return header.SerializeToString()


def _read(arrays: Any, call: int, facts: dict[str, Any]) -> Tables:
    axes: list[AxisTable] = []
    for place, sides in enumerate(facts["axes"]):
        start, offset, weight = (
            arrays[f"{call}.{place}.{name}"] for name in ("start", "offset", "weight")
        )
        coordinates = arrays.get(f"{call}.{place}.coordinates")
        axes.append(
            AxisTable(sides["inputs"], sides["outputs"], start, offset, weight, coordinates)
        )
    return Tables(tuple(facts["output_shape"]), facts["fill"], tuple(axes))


# Terms of a sum that are printed.
MOST_TERMS = 12


@dataclass(frozen=True, slots=True)
class Side:
    """One operator's view of one element of its result, along one axis.

    weights      by given element that the result's is a sum of, exact
    coordinates  where the forward's output reads, by given element of any operator; None where the
                 dialect tells none
    """

    weights: dict[int, float]
    coordinates: dict[int, float] | None


@dataclass(frozen=True, slots=True)
class Reason:
    """One axis of an element of the result, with a side for each operator.

    axis, element  of the result
    gradients      which operators are gradients
    """

    axis: int
    element: int
    gradients: tuple[bool, ...]
    sides: tuple[Side, ...]

    @property
    def given(self) -> list[int]:
        """Elements that enter the result's by any of the operators."""
        return sorted({given for side in self.sides for given in side.weights})

    @property
    def differ(self) -> tuple[str, ...]:
        """Differences between the operators, of "coordinates", "taps" and "weights"."""
        first, *others = self.sides
        kinds: list[str] = []
        if any(side.coordinates != first.coordinates for side in others):
            kinds.append("coordinates")
        if any(_taps(side) != _taps(first) for side in others):
            kinds.append("taps")
        elif any(side.weights != first.weights for side in others):
            kinds.append("weights")
        return tuple(kinds)


def reasons(told: Sequence[tuple[Tables, bool]], element: Sequence[int]) -> list[Reason]:
    """Return, for each axis, the terms of an element of the result.

    told     tables of each operator, and whether it is a gradient
    element  index in the result
    """
    found: list[Reason] = []
    for number_, place in enumerate(element):
        axes = [(tables.axes[number_], gradient) for tables, gradient in told]
        weights = [_weights(axis, place, gradient=gradient) for axis, gradient in axes]
        every = sorted({given for each in weights for given in each})
        sides = tuple(
            Side(each, _coordinates(axis, place, every, gradient=gradient))
            for each, (axis, gradient) in zip(weights, axes, strict=True)
        )
        found.append(Reason(number_, place, tuple(gradient for _, gradient in told), sides))
    return found


def words(reason: Reason, names: Sequence[str]) -> list[str]:
    """Write a reason as a table, with two columns for each operator."""
    kinds = set(reason.gradients)
    if kinds == {True}:
        heading, given = f"input {reason.element} is read by", "output"
    elif kinds == {False}:
        heading, given = f"output {reason.element} reads", "input"
    else:
        heading, given = f"element {reason.element} of the result is a sum of", "given"
    if not reason.given:
        return [f"axis {reason.axis}: {heading} nothing"]
    titles = [given]
    for name in names:
        titles += [f"{name} coordinate".strip(), "weight"]
    rows = [
        f"... {len(reason.given) - MOST_TERMS} more" if place is None else _row(reason, place)
        for place in middle_left_out(len(reason.given), MOST_TERMS)
    ]
    return [f"axis {reason.axis}: {heading}", *table(titles, rows, last_to_left=False)]


def facts(reason: Reason) -> dict[str, Any]:
    """Return a reason as JSON can hold it."""
    return {
        "axis": reason.axis,
        "element": reason.element,
        "differ": list(reason.differ),
        "sides": [
            [
                {
                    "given": given,
                    "coordinate": None
                    if side.coordinates is None
                    else as_json(side.coordinates[given]),
                    "weight": weight,
                }
                for given, weight in side.weights.items()
            ]
            for side in reason.sides
        ],
    }


def _row(reason: Reason, place: int) -> list[str]:
    given = reason.given[place]
    cells = [str(given)]
    for side in reason.sides:
        cells.append("-" if side.coordinates is None else number(side.coordinates[given]))
        cells.append(number(side.weights[given]) if given in side.weights else "-")
    return cells


def _weights(axis: AxisTable, element: int, *, gradient: bool) -> dict[int, float]:
    given, weights = axis.feeding(element) if gradient else axis.read_by(element)
    return dict(zip(given.tolist(), weights.tolist(), strict=True))


def _coordinates(
    axis: AxisTable, element: int, given: Sequence[int], *, gradient: bool
) -> dict[int, float] | None:
    if axis.coordinates is None:
        return None
    return {each: float(axis.coordinates[each if gradient else element]) for each in given}


def _taps(side: Side) -> set[int]:
    return {given for given, weight in side.weights.items() if weight}
