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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from gradwire import v1
from gradwire._wire.statuses import from_in_band
from gradwire.cli.connection import SERVER, check_server_installed, last_line
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
    load,
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

# Arrays of an axis, which None stands for where there are none.
ARRAYS = ("start", "offset", "weight", "coordinates")
Indices = NDArray[np.int64]
Weights = NDArray[np.float64]


# Not slotted: cached properties need a dict.
@dataclass(frozen=True, eq=False)
class AxisTable:
    """An axis of an operator's forward, as weighted sums of inputs.

    Output o is a weighted sum of some adjacent inputs.

    gradient         whether the operator is the gradient of that forward
    inputs, outputs  lengths in the forward's direction
    start            int64[outputs], first input that each output reads
    offset           int64[outputs + 1]: output o has weight[offset[o]:offset[o + 1]]
    weight           float64[nnz], exact
    coordinates      floating[outputs], where each output reads; None if the dialect has none
    fill             value of elements of a forward's result that read nothing along some axis
    """

    gradient: bool
    fill: float
    inputs: int
    outputs: int
    start: Indices
    offset: Indices
    weight: Weights
    coordinates: NDArray[np.floating[Any]] | None

    @property
    def result_length(self) -> int:
        """Length of the operator's result."""
        return self.inputs if self.gradient else self.outputs

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


def tables(
    operators: Sequence[Operator], dtype: DType, input_shape: Shape, output_shape: Shape | None
) -> list[list[AxisTable]]:
    """Return the tables of operators along each axis.

    Raises the error of the first one that is not valid, as evaluating it would.

    output_shape  None if attributes determine it
    """
    check_server_installed("the tables of an operator need")
    describe = partial(v1.TensorDescriptor, data_type=data_type_of(dtype))
    output = None if output_shape is None else describe(sizes=output_shape)
    source = describe(sizes=input_shape)
    headers: list[str] = []
    for one in operators:
        request = v1.EvaluateRequest(operator=to_message(one), input=source, output=output)
        headers.append(base64.b64encode(request.SerializeToString()).decode())
    done = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-m", f"{SERVER}.rpc.axis_tables"],
        input=json.dumps(headers).encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise CommandError(f"the tables could not be computed: {last_line(done.stderr)}")
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as arrays:
        if "error" in arrays:
            raise from_in_band(v1.Error.FromString(arrays["error"].tobytes()))
        answers = json.loads(arrays["facts"].tobytes())
        return [
            [
                AxisTable(
                    operator.gradient,
                    answer["fill"],
                    **lengths,
                    **{name: arrays.get(f"{call}.{axis}.{name}") for name in ARRAYS},
                )
                for axis, lengths in enumerate(answer["axes"])
            ]
            for call, (operator, answer) in enumerate(zip(operators, answers, strict=True))
        ]


# Most terms of a sum that are printed.
MOST_TERMS = 12


@dataclass(frozen=True, slots=True)
class Reason:
    """One axis of an element of the result.

    axis, element  of the result
    gradient       whether the operators are gradients
    operators      their number
    rows           coordinate and exact weight in each operator, by input element; None for a
                   coordinate that the dialect lacks, and for an element that is not read
    """

    axis: int
    element: int
    gradient: bool
    operators: int
    rows: dict[int, list[tuple[float | None, float | None]]]

    @property
    def differ(self) -> list[str]:
        """Differences between the operators: "coordinates", and "taps" or "weights"."""
        rows = self.rows.values()
        coordinates = any(len({known for known, _ in row}) > 1 for row in rows)
        taps = any(len({bool(weight) for _, weight in row}) > 1 for row in rows)
        weights = not taps and any(len({weight for _, weight in row}) > 1 for row in rows)
        kinds = {"coordinates": coordinates, "taps": taps, "weights": weights}
        return [kind for kind, differs in kinds.items() if differs]

    def words(self, names: Sequence[str]) -> list[str]:
        """Return a table as text, with two columns for each operator."""
        heading, given = f"output {self.element} reads", "input"
        if self.gradient:
            heading, given = f"input {self.element} is read by", "output"
        if not self.rows:
            return [f"axis {self.axis}: {heading} nothing"]
        titles = [given]
        for name in names:
            titles += [f"{name} coordinate".strip(), "weight"]
        lines = [
            [str(one), *(number(each) for pair in row for each in pair)]
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
            for side in range(self.operators)
        ]
        return {"axis": self.axis, "element": self.element, "differ": self.differ, "sides": sides}


def reasons(told: Sequence[Sequence[AxisTable]], element: Sequence[int]) -> list[Reason]:
    """Return the terms of a result's element for each axis.

    Each Reason has the terms of all operators.
    """
    why: list[Reason] = []
    for axis, place in enumerate(element):
        sides = [axes[axis] for axes in told]
        weights = [
            dict(zip(*side.taps(place, of_input=side.gradient), strict=True)) for side in sides
        ]
        rows = {
            int(given): [
                (side.coordinate(given if side.gradient else place), each.get(given))
                for side, each in zip(sides, weights, strict=True)
            ]
            for given in sorted(set[int]().union(*weights))
        }
        why.append(Reason(axis, place, sides[0].gradient, len(sides), rows))
    return why


def lines_of(axes: Sequence[AxisTable], why: Sequence[Reason], name: str = "") -> list[str]:
    """Describe an element of one operator; leave out identities."""
    chosen = [one for one in why if not axes[one.axis].is_identity] or why[-1:]
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
    chosen = range(len(input_shape)) if only is None else (only,)
    if chosen[-1] >= len(input_shape):
        raise InvalidUsage(f"--axis: {only} is not one of the axes 0 to {len(input_shape) - 1}")
    drawing = None if picture is None else load("gradwire.cli.pictures")
    (axes,) = tables([operator], dtype, input_shape, output_shape)
    forward = operator.counterpart if operator.gradient else operator.name
    shape = tuple(axis.result_length for axis in axes)
    title = [f"{operator!r}", f"{operator.name}: {dtype} {input_shape} to {shape}"]
    whole = [axis for axis in chosen if not axes[axis].is_identity] or chosen[-1:]
    facts = {
        "operator": operator.name,
        "attributes": operator.shown(),
        "gradient": operator.gradient,
        "forward": forward,
        "dtype": str(dtype),
        "input_shape": input_shape,
        "output_shape": shape,
        "fill": axes[0].fill,
        "axes": [_facts(axes[axis], axis) for axis in chosen],
    }
    lines = [*title]
    if operator.gradient:
        lines.append(
            f"Inputs and outputs below are those of {forward}; the gradient goes from its outputs "
            "to its inputs."
        )
    lines += [line for at in chosen for line in _axis(axes[at], at, rows, whole=at in whole)]
    tell(facts, lines, as_json=as_json)
    if drawing is not None:
        drawing.draw(
            {f"{_sides(axes[at], at)} of {forward}": axes[at] for at in whole},
            title="\n".join(title),
            path=picture,
        )
        click.echo(f"\nWrote {picture}", err=as_json)


def _sides(axis: AxisTable, place: int) -> str:
    sides = f"{counted(axis.inputs, 'input')}, {counted(axis.outputs, 'output')}"
    return f"axis {place}: {sides}"


def _axis(axis: AxisTable, place: int, rows: int, *, whole: bool) -> Iterator[str]:
    sides = _sides(axis, place)
    if not whole:
        yield f"\n{sides}: the identity, each output is the input of its index"
        return
    yield f"\n{sides}, {counted(len(axis.weight), 'weight')}"
    hint = ": --rows 0 prints all, so does --json"
    for of_input, count, titles in (
        (False, axis.outputs, ("output", "coordinate", "reads inputs", "with weights")),
        (True, axis.inputs, ("input", "total weight", "is read by outputs", "with weights")),
    ):
        shown = shortened(range(count), rows or sys.maxsize, hint)
        lines = [at if isinstance(at, str) else _row(axis, at, of_input=of_input) for at in shown]
        yield from ("", *table(titles, lines))
    if len(axis.unread):
        yield f"  {counted(len(axis.unread), 'input')} that no output reads: {places(axis.unread)}"


def _row(axis: AxisTable, place: int, *, of_input: bool) -> list[str]:
    others, weights = axis.taps(place, of_input=of_input)
    if of_input:
        return [str(place), f"{axis.totals[place]:.9g}", places(others), numbers(weights)]
    what = numbers(weights) or f"(it is {number(axis.fill)})"
    return [str(place), number(axis.coordinate(place)), places(others), what]


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
