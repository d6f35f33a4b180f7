"""`gradwire compare`: one input through two operators, or one operator and a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from gradwire.cli.connection import Connection
from gradwire.cli.differences import Difference, difference
from gradwire.cli.evaluating import mapped
from gradwire.cli.exits import DIFFERENT, INVALID, CommandError
from gradwire.cli.reasons import Reason, facts, reasons, words
from gradwire.cli.tables import AxisTable, Call, Tables, tables
from gradwire.cli.texts import as_json, number
from gradwire.ops import OPERATORS, Operator

Array = NDArray[Any]
NAMES = ("A", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared; None is what the command line left out.

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
    """Compare and tell; return 0 where the results are equal, else 1."""
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
