"""`gradwire compare`: two operators, or one operator and a file, bit by bit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gradwire.cli import exits
from gradwire.cli.axis_tables import AxisTable, Call, Reason, Tables, facts, reasons, tables, words
from gradwire.cli.connection import Connection
from gradwire.cli.evaluate import mapped
from gradwire.cli.exits import DIFFERENT, INVALID, CommandError
from gradwire.cli.options import (
    INPUT_FILE,
    attribute_option,
    dtype_option,
    json_option,
    operator_from,
    operator_kind,
    operator_option,
    server_options,
    shape_options,
)
from gradwire.cli.output import as_json, number
from gradwire.ops import OPERATORS, Operator

_ORDER = "gradwire.order"

EXAMPLE = """\b
Example:
  gradwire compare --op interpolate_backward --attr mode=nearest \\
      --attr data_format=NCX --op dml_resample_grad \\
      --attr interpolation_mode=nearest --input-shape 1,1,2 --output-shape 1,1,4
"""


class _Grouped(click.Command):
    """A command that assigns each --attr to the --op before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the order in which options stand, which click forgets."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_ORDER] = [each.name for each in order]
        return super().parse_args(ctx, args)


@click.command(
    cls=_Grouped,
    short_help="Compare two operators, or one and a file, bit by bit.",
    epilog=f"{EXAMPLE}\n{exits.HELP}",
)
@operator_option(multiple=True, text="Once for each of the two; the --attr behind it are its own.")
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
@shape_options(input_required=False)
@dtype_option(text="Type of random numbers; with files only bfloat16 is read from here.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@server_options()
@json_option
@click.pass_context
def compare(
    context: click.Context,
    /,
    *,
    operator: tuple[str, ...],
    attributes: tuple[str, ...],
    server: Connection,
    as_json: bool,
    **options: Any,
) -> int:
    """Give the same input to two operators, and tell whether the results have equal bits.

    If not, tell how far they are apart, the first element that differs, and why: its coordinates,
    taps and weights in both. Exit with 0 if they are equal, with 9 if not.
    """
    operators = _grouped(context.meta[_ORDER], operator, attributes)
    asked = Comparison(operators=operators, **options)
    return run(asked, server, wants_json=as_json)


def _grouped(
    order: Sequence[str], names: Sequence[str], attributes: Sequence[str]
) -> tuple[Operator, ...]:
    """Make operators of names, each with the attributes that stand behind it."""
    groups: list[tuple[str, list[str]]] = []
    rest_of_names, rest_of_attributes = iter(names), iter(attributes)
    for option in order:
        if option == "operator":
            groups.append((next(rest_of_names), []))
        elif option == "attributes":
            given = next(rest_of_attributes)
            if not groups:
                message = f"--attr: {given!r} stands before any --op; give it behind its own"
                raise exits.CommandError(message, code=exits.INVALID)
            groups[-1][1].append(given)
    return tuple(operator_from(operator_kind(name), given) for name, given in groups)


Array = NDArray[Any]
NAMES = ("A", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Arguments of a comparison; None for omitted ones.

    operators  two, or one where there is a file
    against    file with a result from elsewhere
    source     file with the input; a random one, made from seed, where there is none
    """

    operators: tuple[Operator, ...]
    against: Path | None
    source: Path | None
    seed: int
    dtype: np.dtype[Any]
    input_shape: tuple[int, ...] | None
    output_shape: tuple[int, ...] | None


def run(asked: Comparison, connection: Connection, *, wants_json: bool) -> int:
    """Compare and report; return 0 if the results are equal, else DIFFERENT."""
    _check(asked)
    x = _input(asked)
    other = None if asked.against is None else mapped(asked.against, _unnamed(asked.dtype))
    calls = [Call(each, x.dtype, x.shape, asked.output_shape) for each in asked.operators]
    told = tables(calls)
    results = _results(asked, connection, x, [each.output_shape for each in told])
    if other is not None:
        results.append(_fitting(other, results[0], asked.against))
    found = difference(*results)
    gradients = [OPERATORS[each.name].gradient for each in asked.operators]
    why: list[Reason] = []
    if found is not None:
        why = reasons(list(zip(told, gradients, strict=True)), found.first)
    if wants_json:
        click.echo(json.dumps(_facts(results, found, why), allow_nan=False))
    else:
        click.echo("\n".join(_text(asked, results, told, found, why)))
    return 0 if found is None else DIFFERENT


def _check(asked: Comparison) -> None:
    if len(asked.operators) + (asked.against is not None) != len(NAMES):
        raise CommandError("--op: give it twice, or once with --against", code=INVALID)
    if asked.against is not None and asked.source is None:
        message = "--against: a result from elsewhere was made of some input; give --input too"
        raise CommandError(message, code=INVALID)
    if (asked.source is None) is (asked.input_shape is None):
        message = "give one of --input and --input-shape"
        raise CommandError(message, code=INVALID)


def _input(asked: Comparison) -> Array:
    if asked.source is None:
        noise = np.random.default_rng(asked.seed).standard_normal(asked.input_shape)
        return noise.astype(asked.dtype)
    return mapped(asked.source, _unnamed(asked.dtype))


def _unnamed(dtype: np.dtype[Any]) -> str | None:
    """Return the type that a .npy file has no name for, if it is that."""
    return "bfloat16" if str(dtype) == "bfloat16" else None


def _results(
    asked: Comparison, connection: Connection, x: Array, shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    if len(set(shapes)) > 1:
        first, second = shapes
        message = f"the results are of two shapes, {first} and {second}; give --output-shape"
        raise CommandError(message, code=INVALID)
    with connection.client(backend="numpy_cpu") as client:
        return [
            client.evaluate(operator, x, output_shape=shape)
            for operator, shape in zip(asked.operators, shapes, strict=True)
        ]


def _fitting(other: Array, ours: Array, path: Path | None) -> Array:
    if (other.shape, other.dtype) != (ours.shape, ours.dtype):
        raise CommandError(
            f"--against: {path} holds {other.dtype} {other.shape}; ours is {ours.dtype} "
            f"{ours.shape}",
            code=INVALID,
        )
    return other


def _text(
    asked: Comparison,
    results: Sequence[Array],
    told: Sequence[Tables],
    found: Difference | None,
    why: Sequence[Reason],
) -> list[str]:
    one, other = results
    lines = [
        f"A  {asked.operators[0]!r}",
        f"B  {asked.operators[1]!r}" if asked.against is None else f"B  {asked.against}",
    ]
    size = f"{one.size} elements of {one.dtype} {one.shape}"
    if found is None:
        return [*lines, f"equal bits: {size}", *_table_lines(told)]
    return [
        *lines,
        f"different: {found.count} of {size}",
        f"  first at {_both(found.first, one, other)}",
        f"  most at {_both(found.largest, one, other)}, {_distance(found)}",
        *_table_lines(told),
        "",
        f"Why at {_place(found.first)}",
        *_why(why, compared=len(told) > 1),
    ]


def _why(why: Sequence[Reason], *, compared: bool) -> list[str]:
    if not compared:
        told = [reason for reason in why if len(reason.given) != 1 or _weighted(reason)] or why[-1:]
        return [line for reason in told for line in words(reason, ["A"])]
    chosen = [reason for reason in why if set(reason.differ) & {"taps", "weights"}]
    if not chosen:
        return ["  both have the same taps and weights there; what reads nothing differs"]
    lines: list[str] = []
    for reason in chosen:
        first, *others = words(reason, NAMES)
        lines += [f"{first} ({' and '.join(reason.differ)} differ)", *others]
    return lines


def _weighted(reason: Reason) -> bool:
    return any(weight != 1 for side in reason.sides for weight in side.weights.values())


def _table_lines(told: Sequence[Tables]) -> list[str]:
    """Tell on which axes two tables differ, and where."""
    if len(told) == 1:
        return []
    pairs = list(zip(told[0].axes, told[1].axes, strict=True))
    if any((one.inputs, one.outputs) != (other.inputs, other.outputs) for one, other in pairs):
        return []
    lines = [
        f"  axis {axis}: {unequal}"
        for axis, (one, other) in enumerate(pairs)
        if (unequal := _unequal(one, other))
    ]
    return lines or ["  every table is equal: coordinates, taps and weights"]


def _unequal(one: AxisTable, other: AxisTable) -> str:
    """Tell at how many outputs two tables of one size differ; nothing where they are equal."""
    kinds: dict[str, NDArray[Any]] = {}
    if one.coordinates is not None and other.coordinates is not None:
        apart = one.coordinates.astype(float) != other.coordinates.astype(float)
        kinds["coordinates"] = np.flatnonzero(apart)
    (first, first_weights), (second, second_weights) = _entries(one), _entries(other)
    kinds["taps"] = np.unique(np.setxor1d(first, second) // one.inputs)
    common, mine, its = np.intersect1d(first, second, return_indices=True)
    unequal = first_weights[mine] != second_weights[its]
    kinds["weights"] = np.unique(common[unequal] // one.inputs)
    told = [f"{kind} at {len(outputs)}" for kind, outputs in kinds.items() if len(outputs)]
    return f"of {one.outputs} outputs differ: {', '.join(told)}" if told else ""


def _entries(axis: AxisTable) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a number for each place of the matrix that is not zero, ascending, and its weight."""
    used = axis.weight != 0
    return (axis.rows * axis.inputs + axis.columns)[used], axis.weight[used]


def _place(index: Sequence[int]) -> str:
    return f"[{', '.join(map(str, index))}]"


def _both(index: tuple[int, ...], one: Array, other: Array) -> str:
    return f"{_place(index)}: A {number(one[index])}, B {number(other[index])}"


def _distance(found: Difference) -> str:
    if found.ulps is None:
        return "one is NaN"
    return f"{number(found.absolute)} or {found.ulps} ulps apart"


def _facts(
    results: Sequence[Array],
    found: Difference | None,
    why: Sequence[Reason],
) -> dict[str, Any]:
    one, other = results
    told: dict[str, Any] = {
        "equal": found is None,
        "dtype": str(one.dtype),
        "shape": list(one.shape),
        "elements": one.size,
        "different": 0 if found is None else found.count,
    }
    if found is not None:
        for kind, index in (("first", found.first), ("most", found.largest)):
            told[kind] = {
                "index": list(index),
                "A": as_json(one[index]),
                "B": as_json(other[index]),
            }
        told["most"] |= {"absolute": as_json(found.absolute), "ulps": found.ulps}
        told["why"] = [facts(reason) for reason in why]
    return told


Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of an element type: largest, smallest above 0, and from 1 to the next one."""

    most: float
    least: float
    eps: float

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> Bounds:
        """Return those of a type."""
        facts = cast("Any", ml_dtypes.finfo(dtype))  # type: ignore[no-untyped-call]
        return cls(float(facts.max), float(facts.smallest_subnormal), float(facts.eps))


@dataclass(frozen=True, slots=True)
class Difference:
    """Two results that do not have the same bits; every NaN is taken for every other.

    count     elements that differ
    first     index of the first of them in row-major order
    largest   index of the one that differs most, in ulps; one that is NaN, or is infinite, in one
              result only counts as most
    absolute  how much that one differs; nan or inf where one is
    ulps      numbers of the type that lie between, plus 1; 0 for zeros of two signs, None with NaN
    """

    count: int
    first: Index
    largest: Index
    absolute: float
    ulps: int | None


def difference(one: Array, other: Array) -> Difference | None:
    """Compare two arrays of one shape and type; return None where they are equal."""
    differs = differing(one, other)
    if not differs.any():
        return None
    places = np.flatnonzero(differs)
    ours, theirs = one.reshape(-1)[places], other.reshape(-1)[places]
    apart = ulps_between(ours, theirs)
    broken = ~(np.isfinite(ours) & np.isfinite(theirs))
    most = int(np.argmax(broken)) if broken.any() else int(np.argmax(apart))
    with np.errstate(all="ignore"):
        absolute = abs(float(ours[most]) - float(theirs[most]))
    unordered = bool(np.isnan(ours[most]) | np.isnan(theirs[most]))
    return Difference(
        count=len(places),
        first=_index(places[0], one.shape),
        largest=_index(places[most], one.shape),
        absolute=absolute,
        ulps=None if unordered else int(apart[most]),
    )


def differing(one: Array, other: Array) -> NDArray[np.bool_]:
    """Tell for each element whether its bits differ, with all NaNs alike."""
    unequal: NDArray[np.bool_] = _bits(one) != _bits(other)
    return unequal & ~(np.isnan(one) & np.isnan(other))


def ulps_between(one: Array, other: Array) -> NDArray[np.uint64]:
    """Count the steps from each number to the other one; counts with NaN are meaningless."""
    first, second = _rank(one), _rank(other)
    return np.maximum(first, second) - np.minimum(first, second)


def ulps_off(expected: Array, came: Array, magnitude: Array) -> NDArray[np.float64]:
    """Tell how far numbers are off: an ulp is that of the same sum over magnitudes.

    Where a sum cancels its own ulp says nothing about how well it was computed.
    """
    with np.errstate(all="ignore"):
        one, other, size = (each.astype(np.float64) for each in (expected, came, magnitude))
        scale = np.maximum(np.abs(one), np.abs(size))
        bounds = Bounds.of(expected.dtype)
        _, exponent = np.frexp(np.where(np.isfinite(scale), scale, bounds.most))
        ulp = np.maximum(np.ldexp(bounds.eps, exponent - 1), bounds.least)
        finite = np.isfinite(one) & np.isfinite(other)
        return np.where(finite, np.abs(one - other) / ulp, math.inf)


def _bits(array: Array) -> NDArray[np.unsignedinteger[Any]]:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def _rank(array: Array) -> NDArray[np.uint64]:
    """Return the rank of each number among all of its type, both zeros alike."""
    top = np.uint64(1 << (8 * array.dtype.itemsize - 1))
    bits = _bits(array).astype(np.uint64)
    size = bits & (top - np.uint64(1))
    return np.where(bits & top, top - size, top + size)


def _index(place: Any, shape: Index) -> Index:
    index: list[int] = np.array(np.unravel_index(place, shape), np.int64).tolist()
    return tuple(index)
