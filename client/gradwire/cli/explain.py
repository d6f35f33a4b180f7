"""`gradwire explain`: the tables of an operator's axes, as text, JSON and a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np

from gradwire.cli import exits
from gradwire.cli.axis_tables import AxisTable, Call, Tables, forward_name, tables
from gradwire.cli.exits import INVALID, CommandError
from gradwire.cli.options import (
    OUTPUT_FILE,
    attribute_option,
    check_picture,
    dtype_option,
    json_option,
    operator_from,
    operator_kind,
    operator_option,
    shape_options,
)
from gradwire.cli.output import as_json, middle_left_out, number, numbers, places, table
from gradwire.errors import counted
from gradwire.ops import OPERATORS

EXAMPLE = """\b
Example:
  gradwire explain --op interpolate_backward --attr mode=bilinear \\
      --attr data_format=NCX --input-shape 1,1,8 --output-shape 1,1,4
"""


@click.command(
    short_help="Show an operator's coordinates, taps and weights.",
    epilog=f"{EXAMPLE}\n{exits.HELP}",
)
@operator_option()
@attribute_option
@shape_options(input_required=True)
@dtype_option(text="Type of the tensors; few operators' tables depend on it.")
@click.option("--axis", type=click.IntRange(min=0), help="The only axis to tell about.")
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=24,
    show_default=True,
    help="Rows of each table to print, from both of its ends; 0 for all.",
)
@click.option(
    "--output",
    "picture",
    type=OUTPUT_FILE,
    callback=check_picture,
    help="Picture to draw, as .png, .svg or .pdf.",
)
@json_option
def explain(
    *,
    operator: str,
    attributes: tuple[str, ...],
    dtype: np.dtype[Any],
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...] | None,
    **showing: Any,
) -> None:
    """Show what an operator does along each axis: coordinates, taps and weights.

    The tables are those of the forward operator, which a gradient applies the other way round. They
    come from the server package of this installation; no server is called.
    """
    made = operator_from(operator_kind(operator), attributes)
    call = Call(made, dtype, input_shape, output_shape)
    run(call, Showing(**showing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """Parts of a call's tables to show.

    axis     the only axis; None for all
    rows     rows of a longer table that are printed, from both ends; 0 for all
    picture  file to draw to, if any
    """

    axis: int | None
    rows: int
    picture: Path | None
    as_json: bool


def run(call: Call, showing: Showing) -> None:
    """Print the tables, and draw them where there is a file to draw to."""
    rank = len(call.input_shape)
    if showing.axis is not None and not 0 <= showing.axis < rank:
        raise CommandError(
            f"--axis: {showing.axis} is none of the axes 0 to {rank - 1}", code=INVALID
        )
    (told,) = tables([call])
    axes = range(rank) if showing.axis is None else (showing.axis,)
    if showing.as_json:
        click.echo(json.dumps(_facts(call, told, axes), allow_nan=False))
    else:
        most = showing.rows or sys.maxsize
        blocks = [_axis(told, axis, most, alone=len(axes) == 1) for axis in axes]
        click.echo("\n".join(chain(_heading(call, told), *blocks)))
    if showing.picture is not None:
        _draw(call, told, showing.axis, path=showing.picture)
        click.echo(f"\nWrote {showing.picture}", err=showing.as_json)


def _heading(call: Call, told: Tables) -> list[str]:
    name = call.operator.name
    gradient = OPERATORS[name].gradient
    lines = [
        f"{call.operator!r}",
        f"{name}: {call.dtype} {call.input_shape} to {told.output_shape}",
    ]
    if gradient:
        forward = forward_name(call.operator)
        lines.append(
            f"Inputs and outputs below are those of {forward}; the gradient goes from its outputs "
            "to its inputs."
        )
    return lines


def _axis(told: Tables, number_: int, most: int, *, alone: bool) -> Iterator[str]:
    axis = told.axes[number_]
    sides = f"{counted(axis.inputs, 'input')}, {counted(axis.outputs, 'output')}"
    if axis.is_identity and not alone:
        yield f"\naxis {number_}: {sides}: the identity, each output is the input of its index"
        return
    like = next((n for n in range(number_) if told.axes[n].equals(axis)), None)
    if like is not None and not alone:
        yield f"\naxis {number_}: as axis {like}"
        return
    yield f"\naxis {number_}: {sides}, {counted(len(axis.weight), 'weight')}"
    if axis.coordinates is None:
        yield "This dialect tells no coordinates."
    yield ""
    yield from _outputs(axis, most, fill=told.fill)
    yield ""
    yield from _inputs(axis, most)
    if len(axis.unread):
        yield f"  {counted(len(axis.unread), 'input')} that no output reads: {places(axis.unread)}"


def _outputs(axis: AxisTable, most: int, *, fill: float) -> list[str]:
    known = axis.coordinates

    def row(output: int) -> list[str]:
        read, weights = axis.read_by(output)
        where = [] if known is None else [number(known[output])]
        if not len(read):
            return [str(output), *where, "none", f"(it is {number(fill)})"]
        return [str(output), *where, places(read), numbers(weights)]

    titles = ["output", *([] if known is None else ["coordinate"]), "reads inputs", "with weights"]
    return table(titles, _rows(axis.outputs, most, row))


def _inputs(axis: AxisTable, most: int) -> list[str]:
    def row(input_: int) -> list[str]:
        outputs, weights = axis.feeding(input_)
        total = f"{axis.totals[input_]:.9g}"
        return [str(input_), total, places(outputs), numbers(weights)]

    titles = ["input", "total weight", "is read by outputs", "with weights"]
    return table(titles, _rows(axis.inputs, most, row))


def _rows(count: int, most: int, row: Callable[[int], list[str]]) -> Iterator[list[str] | str]:
    for index in middle_left_out(count, most):
        if index is None:
            yield f"... {count - most} more: --rows 0 prints all, so does --json"
        else:
            yield row(index)


def _facts(call: Call, told: Tables, axes: Sequence[int]) -> dict[str, Any]:
    name = call.operator.name
    return {
        "operator": name,
        "attributes": call.operator.shown(),
        "gradient": OPERATORS[name].gradient,
        "forward": forward_name(call.operator),
        "dtype": str(call.dtype),
        "input_shape": list(call.input_shape),
        "output_shape": list(told.output_shape),
        "fill": told.fill,
        "axes": [_axis_facts(told.axes[axis], axis) for axis in axes],
    }


def _axis_facts(axis: AxisTable, number_: int) -> dict[str, Any]:
    known = axis.coordinates
    return {
        "axis": number_,
        "inputs": axis.inputs,
        "outputs": axis.outputs,
        "identity": axis.is_identity,
        "coordinates": None if known is None else [as_json(x) for x in known.tolist()],
        "start": axis.start.tolist(),
        "weights": [part.tolist() for part in np.split(axis.weight, axis.offset[1:-1])],
        "total_weight": axis.totals.tolist(),
    }


def _draw(call: Call, told: Tables, axis: int | None, *, path: Path) -> None:
    """Draw one axis, or all on which something happens; those that are alike once."""
    try:
        from gradwire.cli import pictures  # noqa: PLC0415 - matplotlib is slow, or missing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise CommandError(
            'a picture is drawn with matplotlib: pip install "gradwire[plot]"'
        ) from None
    chosen = _interesting(told) if axis is None else [[axis]]
    rows = [
        (_axis_caption(call, told.axes[alike[0]], alike), told.axes[alike[0]]) for alike in chosen
    ]
    title = f"{call.operator!r}\n{call.dtype} {call.input_shape} to {told.output_shape}"
    pictures.draw(rows, title=title, path=path)


def _interesting(told: Tables) -> list[list[int]]:
    """Return the axes that are not the identity, alike ones together; else the last one."""
    groups: list[list[int]] = []
    for place, axis in enumerate(told.axes):
        if axis.is_identity:
            continue
        alike = next((each for each in groups if told.axes[each[0]].equals(axis)), None)
        if alike is None:
            groups.append([place])
        else:
            alike.append(place)
    return groups or [[len(told.axes) - 1]]


def _axis_caption(call: Call, axis: AxisTable, alike: list[int]) -> str:
    axes = "axis" if len(alike) == 1 else "axes"
    which = " and ".join(map(str, alike))
    forward = forward_name(call.operator)
    return f"{axes} {which}: {axis.inputs} inputs and {axis.outputs} outputs of {forward}"
