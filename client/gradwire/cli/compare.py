"""`gradwire compare`: two operators, or operator and file, bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np

from gradwire.cli.connection import Connection
from gradwire.cli.evaluate import mapped
from gradwire.cli.explain import AxisTable, Reason, lines_of, reasons, tables
from gradwire.cli.options import (
    INPUT_FILE,
    attribute_option,
    dtype_option,
    input_shape_option,
    json_option,
    output_shape_option,
    read_operator,
    seed_option,
    server_options,
)
from gradwire.cli.output import DIFFERENT, HELP, Facts, InvalidUsage, json_number, number, tell
from gradwire.ops import Operator
from gradwire.tensors import Array, DType, Shape

EXAMPLE = """\b
Example:
  gradwire compare --op interpolate_backward --attr mode=nearest \\
      --attr data_format=NCX --op dml_resample_grad \\
      --attr interpolation_mode=nearest --input-shape 1,1,2 --output-shape 1,1,4
"""


class _Grouped(click.Command):
    """A command that assigns each --attr to the --op before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; `operators` stands for --op and --attr."""
        # click discards the order of options.
        _, _, order = self.make_parser(ctx).parse_args([*args])
        rest = super().parse_args(ctx, args)
        words = {name: iter(ctx.params.pop(name)) for name in ("names", "attributes")}
        groups: list[list[str]] = []
        for option in order:
            if option.name == "names":
                groups.append([])
            if option.name in words:
                if not groups:
                    raise InvalidUsage("--attr stands before any --op; give it behind its own")
                groups[-1].append(next(words[option.name]))
        ctx.params["operators"] = [read_operator(name, given) for name, *given in groups]
        return rest


@click.command(
    cls=_Grouped,
    short_help="Compare two operators, or one and a file, bit by bit.",
    epilog=f"{EXAMPLE}\n{HELP}",
)
@click.option(
    "--op",
    "names",
    metavar="NAME",
    multiple=True,
    required=True,
    help="Once for each of the two; the --attr behind it are its own.",
)
@attribute_option
@click.option(
    "--against",
    type=INPUT_FILE,
    metavar="FILE.npy",
    help="A result from elsewhere, in place of the second operator.",
)
@click.option(
    "--input",
    "source",
    type=INPUT_FILE,
    metavar="FILE.npy",
    help="What the operators are given. Without it, random normal numbers.",
)
@input_shape_option()
@output_shape_option
@dtype_option(help="Type of random numbers; with files only bfloat16 is read from here.")
@seed_option
@server_options()
@json_option
def compare(
    *,
    operators: list[Operator],
    against: Path | None,
    source: Path | None,
    input_shape: Shape | None,
    output_shape: Shape | None,
    dtype: DType,
    seed: int,
    server: Connection,
    as_json: bool,
) -> int:
    """Compare the results of two operators for equal bits.

    Both get the same input. If results differ, tell how far they are apart, the first element that
    differs, and why: its coordinates, taps and weights in both. Exit with 0 if they are equal, with
    9 if not.
    """
    if len(operators) + (against is not None) != len(NAMES):
        raise InvalidUsage("--op: give it twice, or once with --against")
    if against is not None and source is None:
        raise InvalidUsage(
            "--against: a result from elsewhere was made of some input; give --input too"
        )
    if (source is None) is (input_shape is None):
        raise InvalidUsage("give one of --input and --input-shape")
    if source is None:
        x = np.random.default_rng(seed).standard_normal(input_shape).astype(dtype)
    else:
        x = mapped(source, str(dtype))
    elsewhere = [] if against is None else [mapped(against, str(dtype))]
    told = tables(operators, x.dtype, x.shape, output_shape)
    shapes = [tuple(axis.result_length for axis in axes) for axes in told]
    kinds = {f"{x.dtype.newbyteorder('=')} {shape}" for shape in shapes}
    kinds |= {f"{each.dtype} {each.shape}" for each in elsewhere}
    if len(kinds) > 1:
        both = " and ".join(sorted(kinds))
        raise InvalidUsage(f"the results are {both}; give --output-shape, or another file")
    with server.client(backend="numpy_cpu") as client:
        results = [client.evaluate(each, x, output_shape=shapes[0]) for each in operators]
    results += elsewhere
    names = [*map(repr, operators), str(against)]
    one, other = results
    found = difference(one, other)
    facts, lines = _told(one, other, told, found)
    tell(facts, [*map("{}  {}".format, NAMES, names), *lines], as_json=as_json)
    return 0 if found is None else DIFFERENT


NAMES = ("A", "B")


def _told(
    one: Array, other: Array, told: Sequence[Sequence[AxisTable]], found: Difference | None
) -> tuple[Facts, list[str]]:
    """Describe a comparison as a JSON object and as lines."""
    facts: Facts = {
        "equal": found is None,
        "dtype": str(one.dtype),
        "shape": one.shape,
        "elements": one.size,
        "different": 0 if found is None else found.count,
    }
    size = f"{one.size} elements of {one.dtype} {one.shape}"
    if found is None:
        return facts, [f"equal bits: {size}"]
    lines = [f"different: {found.count} of {size}"]
    for name, at in (("first", found.first), ("most", found.largest)):
        facts[name] = {"index": at, "A": json_number(one[at]), "B": json_number(other[at])}
        lines.append(f"  {name} at {[*at]}: A {number(one[at])}, B {number(other[at])}")
    facts["most"] |= {"absolute": json_number(found.absolute), "ulps": json_number(found.ulps)}
    lines[-1] += f", {number(found.absolute)} or {found.ulps:.10g} ulps apart"
    why = reasons(told, found.first)
    facts["why"] = [each.facts() for each in why]
    return facts, [*lines, "", f"Why at {[*found.first]}", *_why(told, why)]


def _why(told: Sequence[Sequence[AxisTable]], why: Sequence[Reason]) -> list[str]:
    if len(told) == 1:
        return lines_of(told[0], why, "A")
    lines: list[str] = []
    for reason in why:
        if {"taps", "weights"} & {*reason.differ}:
            first, *others = reason.words(NAMES)
            lines += [f"{first} ({' and '.join(reason.differ)} differ)", *others]
    return lines or ["  both have the same taps and weights there; what reads nothing differs"]


# Limits of an element type, also of bfloat16, which NumPy's finfo lacks.
finfo: Callable[[DType], Any] = ml_dtypes.finfo


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the bits of two results.

    Every NaN equals every other.

    count     number of elements that differ
    first     index of the first of them in row-major order
    largest   index of the element that differs most, in ulps
    absolute  difference at that element; nan or inf if one value is
    ulps      the same in ulps; 0 for zeros of two signs, inf with NaN and infinities
    """

    count: int
    first: tuple[int, ...]
    largest: tuple[int, ...]
    absolute: float
    ulps: float


def difference(
    one: Array, other: Array, magnitude: Callable[[], Array] | None = None, *, tolerance: int = 0
) -> Difference | None:
    """Compare two arrays of one shape and type; None if equal.

    magnitude  returns the same sums over magnitudes, whose ulps count; None for those of the values
    tolerance  ulps of elements that still count as equal; 0 for equal bits
    """
    differ = (one != other) | (np.signbit(one) != np.signbit(other))
    wrong = differ & ~(np.isnan(one) & np.isnan(other))
    if not wrong.any():
        return None
    off = ulps_off(one, other, other if magnitude is None else magnitude())
    if tolerance:
        wrong &= off > tolerance
    if not wrong.any():
        return None
    first, largest = (
        tuple(map(int, np.unravel_index(np.argmax(each), wrong.shape)))
        for each in (wrong, np.where(wrong, off, -1))
    )
    absolute = abs(float(one[largest]) - float(other[largest]))
    return Difference(int(wrong.sum()), first, largest, absolute, float(off[largest]))


def ulps_off(expected: Array, came: Array, magnitude: Array) -> Array:
    """Return errors in ulps of the expected values, or of larger magnitudes.

    Where a sum cancels, its own ulp says nothing about the accuracy of the computation.
    """
    largest = finfo(expected.dtype).max
    # The largest number has no next one.
    last = np.nextafter(largest, largest * 0)
    with np.errstate(all="ignore"):
        scale = np.fmax(np.abs(expected), np.abs(magnitude))
        ulp = np.spacing(np.fmin(scale, last)).astype(np.float64)
        off = np.abs(expected.astype(np.float64) - came.astype(np.float64)) / ulp
    return np.where(np.isnan(off), math.inf, off)
