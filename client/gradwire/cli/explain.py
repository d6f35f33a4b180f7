"""Tables of an operator's axes, and sums behind single elements.

The server package of this installation computes the tables, in a child process, so that the command
line never imports the server.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
from numpy.typing import NDArray

from gradwire import v1
from gradwire._wire.requests import RequestTemplate
from gradwire._wire.statuses import from_in_band
from gradwire.cli.connection import INSTALL
from gradwire.cli.options import (
    OutputFile,
    dtype_option,
    input_shape_option,
    json_option,
    operator_options,
    output_shape_option,
)
from gradwire.cli.output import (
    HELP,
    CommandError,
    Facts,
    InvalidUsage,
    json_number,
    load_pictures,
    number,
    numbers,
    places,
    shortened,
    table,
    tell,
)
from gradwire.errors import counted
from gradwire.ops import Operator, to_message
from gradwire.tensors import DType, Shape, data_type_of

PACKAGE = "gradwire_server"
MODULE = f"{PACKAGE}.rpc.axis_tables"

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]


# Not slotted: cached properties need a dict.
@dataclass(frozen=True, eq=False)
class AxisTable:
    """An axis of an operator's forward, as weighted sums of inputs.

    Output o is a weighted sum of some adjacent inputs.

    inputs, outputs  lengths in the forward's direction
    start            int64[outputs], first input that each output reads
    offset           int64[outputs + 1]: output o has weight[offset[o]:offset[o + 1]]
    weight           float64[nnz], exact
    coordinates      floating[outputs], where each output reads; None if the dialect has none
    """

    inputs: int
    outputs: int
    start: Indices
    offset: Indices
    weight: Weights
    coordinates: NDArray[np.floating[Any]] | None

    ARRAYS: ClassVar = ("start", "offset", "weight", "coordinates")

    def coordinate(self, output: int) -> float | None:
        """Return where an output reads; None if the dialect has none."""
        return None if self.coordinates is None else float(self.coordinates[output])

    def taps(self, place: int, *, of_input: bool) -> tuple[Indices, Weights]:
        """Return the inputs that an output reads, ascending, and their weights.

        of_input  whether place is an input; the outputs that read it are then returned
        """
        own, others = (self.columns, self.rows) if of_input else (self.rows, self.columns)
        chosen = own == place
        return others[chosen], self.weight[chosen]

    @cached_property
    def rows(self) -> Indices:
        """Output of each weight: int64[nnz]."""
        return np.repeat(np.arange(self.outputs), np.diff(self.offset))

    @cached_property
    def columns(self) -> Indices:
        """Input of each weight: int64[nnz]."""
        first = np.repeat(self.start - self.offset[:-1], np.diff(self.offset))
        return first + np.arange(len(first))

    @cached_property
    def totals(self) -> Weights:
        """Total weight of each input: float64[inputs], the gradient of ones."""
        return np.bincount(self.columns, self.weight, self.inputs).astype(np.float64)

    @cached_property
    def unread(self) -> Indices:
        """Inputs that no output reads."""
        return np.setdiff1d(np.arange(self.inputs), self.columns)

    @cached_property
    def is_identity(self) -> bool:
        """Whether every output equals the input of its own index."""
        everywhere = self.inputs == self.outputs == len(self.weight)
        return everywhere and bool(np.all((self.columns == self.rows) & (self.weight == 1)))


def call(
    operator: Operator,
    dtype: DType,
    input_shape: Shape,
    output_shape: Shape | None,
) -> RequestTemplate:
    """Return a call without its data; no output_shape if attributes determine it."""
    describe = partial(v1.TensorDescriptor, data_type=data_type_of(dtype))
    output = None if output_shape is None else describe(sizes=output_shape)
    return RequestTemplate(operator, to_message(operator), describe(sizes=input_shape), output)


@dataclass(frozen=True, slots=True)
class Tables:
    """Output and axis tables of a call.

    gradient      whether the operator is a gradient
    output_shape  of its result
    fill          value of elements of a forward's result that read nothing along some axis
    axes          the forward's table along each axis
    """

    gradient: bool
    output_shape: Shape
    fill: float
    axes: tuple[AxisTable, ...]


def tables(calls: Sequence[RequestTemplate]) -> list[Tables]:
    """Return the tables of calls.

    Raises the first invalid call's error, as evaluating it would.
    """
    if find_spec(PACKAGE) is None:
        raise CommandError(f"the tables of an operator need the package {PACKAGE}: {INSTALL}")
    headers = [base64.b64encode(one.header).decode() for one in calls]
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
        told: list[Tables] = []
        answers = json.loads(arrays["facts"].tobytes())
        for number_, (one, answer) in enumerate(zip(calls, answers, strict=True)):
            axes = tuple(
                AxisTable(
                    **lengths,
                    **{name: arrays.get(f"{number_}.{axis}.{name}") for name in AxisTable.ARRAYS},
                )
                for axis, lengths in enumerate(answer["axes"])
            )
            shape = tuple(answer["output_shape"])
            told.append(Tables(one.op.gradient, shape, answer["fill"], axes))
        return told


# Most terms of a sum that are printed.
MOST_TERMS = 12


@dataclass(frozen=True, slots=True)
class Reason:
    """One axis of an element of the result.

    axis, element  of the result
    operators      each operator's table, and whether it is a gradient
    """

    axis: int
    element: int
    operators: Sequence[tuple[AxisTable, bool]]

    @property
    def rows(self) -> dict[int, list[tuple[float | None, float | None]]]:
        """Coordinate and exact weight in each operator, by input element.

        None for a coordinate that the dialect lacks, and for an element that is not read.
        """
        weights = [
            dict(zip(*axis.taps(self.element, of_input=gradient), strict=True))
            for axis, gradient in self.operators
        ]
        return {
            int(given): [
                (axis.coordinate(given if gradient else self.element), each.get(given))
                for (axis, gradient), each in zip(self.operators, weights, strict=True)
            ]
            for given in sorted(set[int]().union(*weights))
        }

    @property
    def differ(self) -> list[str]:
        """Differences between the operators, of "coordinates", "taps" and "weights"."""
        coordinates = [{known for known, _ in row} for row in self.rows.values()]
        weights = [{weight for _, weight in row} for row in self.rows.values()]
        taps = [set(map(bool, each)) for each in weights]
        kinds: dict[str, list[set[Any]]] = {
            "coordinates": coordinates,
            "taps": taps,
            "weights": weights,
        }
        differ = [kind for kind, rows in kinds.items() if any(len(row) > 1 for row in rows)]
        return [kind for kind in differ if kind != "weights" or "taps" not in differ]

    def words(self, names: Sequence[str]) -> list[str]:
        """Return a table as text, with two columns for each operator."""
        heading, given = f"output {self.element} reads", "input"
        if self.operators[0][1]:
            heading, given = f"input {self.element} is read by", "output"
        if not self.rows:
            return [f"axis {self.axis}: {heading} nothing"]
        titles = [given]
        for name in names:
            titles += [f"{name} coordinate".strip(), "weight"]
        lines = [
            [str(one), *("-" if each is None else number(each) for pair in row for each in pair)]
            for one, row in self.rows.items()
        ]
        return [f"axis {self.axis}: {heading}", *table(titles, shortened(lines, MOST_TERMS))]

    def facts(self) -> Facts:
        """Return the same as a JSON object."""
        sides = [
            [
                {"given": given, "coordinate": json_number(row[side][0]), "weight": row[side][1]}
                for given, row in self.rows.items()
                if row[side][1] is not None
            ]
            for side in range(len(self.operators))
        ]
        return {"axis": self.axis, "element": self.element, "differ": self.differ, "sides": sides}


def reasons(told: Sequence[Tables], element: Sequence[int]) -> list[Reason]:
    """Return the terms of a result's element for each axis.

    Each Reason has the terms of all operators.
    """
    return [
        Reason(axis, place, [(each.axes[axis], each.gradient) for each in told])
        for axis, place in enumerate(element)
    ]


def lines_of(told: Tables, why: Sequence[Reason], name: str = "") -> list[str]:
    """Describe an element of one operator; leave out identities."""
    chosen = [one for one in why if not told.axes[one.axis].is_identity] or why[-1:]
    return [line for one in chosen for line in one.words([name])]


EXAMPLE = """\b
Example:
  gradwire explain --op interpolate_backward --attr mode=bilinear \\
      --attr data_format=NCX --input-shape 1,1,8 --output-shape 1,1,4
"""


@click.command(
    short_help="Show an operator's coordinates, taps and weights.",
    epilog=f"{EXAMPLE}\n{HELP}",
)
@operator_options
@input_shape_option(required=True)
@output_shape_option
@dtype_option(help="Type of the tensors; few operators' tables depend on it.")
@click.option("--axis", "only", type=click.IntRange(0), help="The only axis to tell about.")
@click.option(
    "--rows",
    type=click.IntRange(0),
    default=24,
    help="Rows of each table to print, from both of its ends; 0 for all.",
)
@click.option(
    "--output",
    "picture",
    # Formats that matplotlib writes without further programs.
    type=OutputFile(".png", ".svg", ".pdf"),
    help="Picture to draw, as .png, .svg or .pdf.",
)
@json_option
def explain(
    *,
    operator: Operator,
    dtype: DType,
    input_shape: Shape,
    output_shape: Shape | None,
    only: int | None,
    rows: int,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Show what an operator does along each axis: coordinates, taps and weights.

    The tables are those of the forward operator, which a gradient applies transposed. They come
    from the server package of this installation; no server is called.
    """
    axes = range(len(input_shape)) if only is None else (only,)
    if axes[-1] >= len(input_shape):
        raise InvalidUsage(f"--axis: {only} is not one of the axes 0 to {len(input_shape) - 1}")
    drawing = None if picture is None else load_pictures()
    (told,) = tables([call(operator, dtype, input_shape, output_shape)])
    forward = operator.counterpart if operator.gradient else operator.name
    title = [f"{operator!r}", f"{operator.name}: {dtype} {input_shape} to {told.output_shape}"]
    whole = [axis for axis in axes if not told.axes[axis].is_identity] or axes[-1:]
    facts = {
        "operator": operator.name,
        "attributes": operator.shown(),
        "gradient": operator.gradient,
        "forward": forward,
        "dtype": str(dtype),
        "input_shape": input_shape,
        "output_shape": told.output_shape,
        "fill": told.fill,
        "axes": [_facts(told.axes[axis], axis) for axis in axes],
    }
    lines = [*title]
    if operator.gradient:
        lines.append(
            f"Inputs and outputs below are those of {forward}; the gradient goes from its outputs "
            "to its inputs."
        )
    lines += [line for axis in axes for line in _axis(told, axis, rows, whole=axis in whole)]
    tell(facts, lines, as_json=as_json)
    if drawing is not None:
        drawing.draw(
            {f"{_sides(told, axis)} of {forward}": told.axes[axis] for axis in whole},
            title="\n".join(title),
            path=picture,
        )
        click.echo(f"\nWrote {picture}", err=as_json)


def _sides(told: Tables, place: int) -> str:
    axis = told.axes[place]
    sides = f"{counted(axis.inputs, 'input')}, {counted(axis.outputs, 'output')}"
    return f"axis {place}: {sides}"


def _axis(told: Tables, place: int, rows: int, *, whole: bool) -> Iterator[str]:
    axis, sides = told.axes[place], _sides(told, place)
    if not whole:
        yield f"\n{sides}: the identity, each output is the input of its index"
        return
    yield f"\n{sides}, {counted(len(axis.weight), 'weight')}"
    known = axis.coordinates
    if known is None:
        yield "This dialect tells no coordinates."

    def of_output(output: int) -> list[str]:
        read, weights = axis.taps(output, of_input=False)
        where = [] if known is None else [number(known[output])]
        terms = [places(read), numbers(weights) if len(read) else f"(it is {number(told.fill)})"]
        return [str(output), *where, *terms]

    def of_input(input_: int) -> list[str]:
        outputs, weights = axis.taps(input_, of_input=True)
        return [str(input_), f"{axis.totals[input_]:.9g}", places(outputs), numbers(weights)]

    where = [] if known is None else ["coordinate"]
    titles = ["output", *where, "reads inputs", "with weights"]
    yield from ("", *_table(titles, axis.outputs, rows, of_output))
    titles = ["input", "total weight", "is read by outputs", "with weights"]
    yield from ("", *_table(titles, axis.inputs, rows, of_input))
    if len(axis.unread):
        yield f"  {counted(len(axis.unread), 'input')} that no output reads: {places(axis.unread)}"


def _table(titles: list[str], count: int, rows: int, row: Callable[[int], list[str]]) -> list[str]:
    hint = ": --rows 0 prints all, so does --json"
    shown = shortened(range(count), rows or sys.maxsize, hint)
    lines = [at if isinstance(at, str) else row(at) for at in shown]
    return table(titles, lines, last_to_left=True)


def _facts(axis: AxisTable, place: int) -> Facts:
    known = axis.coordinates
    return {
        "axis": place,
        "inputs": axis.inputs,
        "outputs": axis.outputs,
        "identity": axis.is_identity,
        "coordinates": None if known is None else list(map(json_number, known)),
        "start": axis.start.tolist(),
        "weights": [part.tolist() for part in np.split(axis.weight, axis.offset[1:-1])],
        "total_weight": axis.totals.tolist(),
    }
