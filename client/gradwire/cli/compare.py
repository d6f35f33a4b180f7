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
from gradwire.cli.explain import Reason, Tables, call, lines_of, reasons, tables
from gradwire.cli.options import (
    INPUT_FILE,
    attribute_option,
    dtype_option,
    input_shape_option,
    json_option,
    operator_option,
    output_shape_option,
    read_operator,
    seed_option,
    server_options,
)
from gradwire.cli.output import (
    DIFFERENT,
    HELP,
    Facts,
    InvalidUsage,
    index,
    json_number,
    number,
    tell,
)
from gradwire.ops import Operator
from gradwire.tensors import Array, DType, Shape

_ORDER = "gradwire.order"

EXAMPLE = """\b
Example:
  gradwire compare --op interpolate_backward --attr mode=nearest \\
      --attr data_format=NCX --op dml_resample_grad \\
      --attr interpolation_mode=nearest --input-shape 1,1,2 --output-shape 1,1,4
"""


class _Grouped(click.Command):
    """A command that assigns each --attr to the preceding --op."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Record the order of options, which click discards."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_ORDER] = [each.name for each in order]
        return super().parse_args(ctx, args)


@click.command(
    cls=_Grouped,
    short_help="Compare two operators, or one and a file, bit by bit.",
    epilog=f"{EXAMPLE}\n{HELP}",
)
@operator_option(multiple=True, help="Once for each of the two; the --attr behind it are its own.")
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
@click.pass_context
def compare(
    context: click.Context,
    /,
    *,
    operator: tuple[str, ...],
    attributes: tuple[str, ...],
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
    operators = _grouped(context.meta[_ORDER], operator, attributes)
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
    elsewhere = None if against is None else mapped(against, str(dtype))
    told = tables([call(each, x.dtype, x.shape, output_shape) for each in operators])
    shapes = [each.output_shape for each in told]
    if len(set(shapes)) > 1:
        message = f"the results are of two shapes, {shapes[0]} and {shapes[1]}"
        raise InvalidUsage(f"{message}; give --output-shape")
    with server.client(backend="numpy_cpu") as client:
        results = [client.evaluate(each, x, output_shape=shapes[0]) for each in operators]
    names = list(map(repr, operators))
    if elsewhere is not None:
        results.append(elsewhere)
        names.append(str(against))
        ours, theirs = (f"{each.dtype} {each.shape}" for each in results)
        if ours != theirs:
            raise InvalidUsage(f"--against: {against} holds {theirs}; ours is {ours}")
    one, other = results
    found = difference(one, other)
    facts, lines = _told(one, other, told, found)
    tell(facts, [*map("{}  {}".format, NAMES, names), *lines], as_json=as_json)
    return 0 if found is None else DIFFERENT


def _grouped(
    order: Sequence[str], names: Sequence[str], attributes: Sequence[str]
) -> tuple[Operator, ...]:
    """Make operators of names, each with the attributes after it."""
    groups: list[tuple[str, list[str]]] = []
    rest_of_names, rest_of_attributes = iter(names), iter(attributes)
    for option in order:
        if option == "operator":
            groups.append((next(rest_of_names), []))
        elif option == "attributes":
            given = next(rest_of_attributes)
            if not groups:
                message = f"--attr: {given!r} stands before any --op; give it behind its own"
                raise InvalidUsage(message)
            groups[-1][1].append(given)
    return tuple(read_operator(*group) for group in groups)


NAMES = ("A", "B")


def _told(
    one: Array, other: Array, told: Sequence[Tables], found: Difference | None
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
    places = {"first": found.first, "most": found.largest}
    for name, at in places.items():
        facts[name] = {"index": at, "A": json_number(one[at]), "B": json_number(other[at])}
    facts["most"] |= {"absolute": json_number(found.absolute), "ulps": json_number(found.ulps)}
    why = reasons(told, found.first)
    facts["why"] = [each.facts() for each in why]
    first, most = (
        f"  {name} at {index(at)}: A {number(one[at])}, B {number(other[at])}"
        for name, at in places.items()
    )
    return facts, [
        f"different: {found.count} of {size}",
        first,
        f"{most}, {number(found.absolute)} or {found.ulps:.10g} ulps apart",
        "",
        f"Why at {index(found.first)}",
        *_why(told, why),
    ]


def _why(told: Sequence[Tables], why: Sequence[Reason]) -> list[str]:
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
    wrong = (_bits(one) != _bits(other)) & ~(np.isnan(one) & np.isnan(other))
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
    with np.errstate(all="ignore"):
        absolute = abs(float(one[largest]) - float(other[largest]))
    return Difference(int(wrong.sum()), first, largest, absolute, float(off[largest]))


def ulps_off(expected: Array, came: Array, magnitude: Array) -> Array:
    """Return errors in ulps of the expected values, or of larger magnitudes.

    Where a sum cancels, its own ulp says nothing about the accuracy of the computation.
    """
    with np.errstate(all="ignore"):
        one, other, size = (each.astype(np.float64) for each in (expected, came, magnitude))
        scale = np.maximum(np.abs(one), np.abs(size))
        bounds = finfo(expected.dtype)
        _, exponent = np.frexp(np.where(np.isfinite(scale), scale, float(bounds.max)))
        ulp = np.ldexp(float(bounds.eps), exponent - 1)
        ulp = np.maximum(ulp, float(bounds.smallest_subnormal))
        finite = np.isfinite(one) & np.isfinite(other)
        return np.where(finite, np.abs(one - other) / ulp, math.inf)


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
