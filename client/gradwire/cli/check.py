"""`gradwire check`: a function under development against an operator, over awkward cases."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np

from gradwire.cli import exits
from gradwire.cli.axis_tables import Call, Tables, facts, reasons, tables, words
from gradwire.cli.check_trials import (
    VALUES,
    Candidate,
    Case,
    Failure,
    Frame,
    Shrinker,
    Trial,
    Unfit,
    all_cases,
    load_candidate,
)
from gradwire.cli.connection import Connection
from gradwire.cli.exits import DIFFERENT, INVALID, CommandError
from gradwire.cli.options import (
    attribute_option,
    dtype_option,
    json_option,
    operator_from,
    operator_kind,
    operator_option,
    server_options,
)
from gradwire.cli.output import as_json, number
from gradwire.errors import counted
from gradwire.ops import OPERATORS, Operator

EXAMPLE = """\b
Example:
  gradwire check kernels.py:upsample_backward --op interpolate_backward \\
      --attr mode=bilinear --attr data_format=NCX --tolerance 2
"""


@click.command(
    short_help="Check a function of your own against an operator.",
    epilog=f"{EXAMPLE}\n{exits.HELP}",
)
@click.argument("name", metavar="MODULE:FUNCTION")
@operator_option()
@attribute_option
@dtype_option(multiple=True, text="Type of the tensors; once for each.")
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(min=1, max=8),
    multiple=True,
    help="Number of axes; once for each. Without it, 4, or else the first that fits.",
)
@click.option(
    "--values",
    type=click.Choice(list(VALUES)),
    multiple=True,
    help="What to fill tensors with; once for each. Without it, all.",
)
@click.option(
    "--tolerance",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="ULPS",
    help="How far a result may be off, in ulps of the same sum over magnitudes.",
)
@click.option("--torch", is_flag=True, help="Call the function with torch tensors.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--failures",
    "most",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Failures to tell.",
)
@server_options()
@json_option
def check(
    *,
    name: str,
    operator: str,
    attributes: tuple[str, ...],
    values: tuple[str, ...],
    torch: bool,
    server: Connection,
    as_json: bool,
    **options: Any,
) -> int:
    """Check a function of your own against an operator, over cases that kernels get wrong.

    FUNCTION is called with a gradient, a NumPy array of any strides, and the shape of its result, a
    tuple; it returns an array of that shape and of the gradient's type. With --torch both are
    tensors. For a forward operator it is given the input in place of a gradient. MODULE may be
    the name of a file that ends in .py. Leave sizes out, which each case has of its own.

    Each failure is shrunk to the smallest case that fails alike. Exit with 0 if there is none, with
    9 if there is one.
    """
    made = operator_from(operator_kind(operator), attributes)
    candidate = load_candidate(name, torch=torch)
    told = values or tuple(VALUES)
    asked = Check(name=name, candidate=candidate, operator=made, values=told, **options)
    return run(asked, server, wants_json=as_json)


# Ulps that the order of sums may make.
ROUNDING = 4

# The rank that most kernels have first.
RANKS = (4, 3, 5, 2, 1)

# Attributes that determine the sizes of a forward's output.
SIZES = ("size", "sizes", "shape", "sizes_tensor")

# Values that a report writes out.
MOST_VALUES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Arguments of a check.

    ranks  of the tensors; none for the first of RANKS that the operator takes with its attributes
    most   failures that are told
    """

    name: str
    candidate: Candidate
    operator: Operator
    dtypes: tuple[np.dtype[Any], ...]
    values: tuple[str, ...]
    ranks: tuple[int, ...]
    tolerance: int
    seed: int
    most: int


@dataclass(slots=True)
class CheckTally:
    """Outcomes of the cases."""

    equal: int = 0
    unfit: int = 0
    reason: str = ""
    failures: list[tuple[Trial, Failure]] = field(default_factory=list[tuple[Trial, Failure]])

    @property
    def ran(self) -> int:
        """Cases that the operator takes."""
        return self.equal + len(self.failures)


def run(asked: Check, connection: Connection, *, wants_json: bool) -> int:
    """Check and report; return 0 if the function equals the operator, else DIFFERENT."""
    with connection.client(backend="numpy_cpu") as client:
        tally = CheckTally()
        for rank in asked.ranks or RANKS:
            _run_rank(asked, client, rank, tally)
            if tally.ran and not asked.ranks:
                break
        if not tally.ran:
            message = f"no case fits the operator with these attributes: {tally.reason}"
            raise CommandError(f"{message}{_hint(asked.operator)}", code=INVALID)
        smallest = _smallest(tally, asked.most)
    told = [_tables(asked, failure) for failure, _ in smallest]
    if wants_json:
        click.echo(json.dumps(_facts(asked, tally, smallest, told), allow_nan=False))
    else:
        click.echo("\n".join(_text(asked, tally, smallest, told)))
    return DIFFERENT if tally.failures else 0


def _hint(operator: Operator) -> str:
    """Tell which attributes pin sizes that the cases have of their own."""
    pinned = [name for name in SIZES if getattr(operator, name, ())]
    if not pinned:
        return ""
    return f"; each case has its own sizes: leave {' and '.join(pinned)} out, or give scales"


def _run_rank(asked: Check, client: Any, rank: int, tally: CheckTally) -> None:
    """Run the cases of a rank: the channel before the spatial axes, or else behind them."""
    kind = OPERATORS[asked.operator.name]
    if not kind.min_rank <= rank <= kind.max_rank:
        tally.reason = tally.reason or f"it takes tensors of {kind.ranks()} axes"
        return
    for channels_last in (False, True):
        frame = Frame(rank, channels_last)
        trial = Trial(client, asked.operator, asked.candidate, frame, asked.tolerance, asked.seed)
        resampled = _run_cases(trial, all_cases(asked.dtypes, asked.values, rank=rank), tally)
        if resampled or rank <= 2:  # noqa: PLR2004 (no channel to move)
            return


def _run_cases(trial: Trial, cases: Iterable[Case], tally: CheckTally) -> bool:
    """Run cases; return whether the operator took one in which a length changes."""
    resampled = False
    for case in cases:
        try:
            failure = trial(case)
        except Unfit as unfit:
            tally.unfit += 1
            tally.reason = str(unfit)
            continue
        resampled |= any(one != other for one, other in case.spatial)
        if failure is None:
            tally.equal += 1
        else:
            tally.failures.append((trial, failure))
    return resampled


def _smallest(tally: CheckTally, most: int) -> list[tuple[Failure, int]]:
    """Return shrunk failures of different kinds, the smallest first, and how many are like each.

    Those that a tolerance would let pass come last.
    """
    groups: dict[tuple[str, ...], list[tuple[Trial, Failure]]] = {}
    for trial, failure in sorted(tally.failures, key=lambda each: _weight(each[1])):
        case = failure.case
        key = (failure.kind, str(case.dtype), case.values, case.layout)
        groups.setdefault(key, []).append((trial, failure))
    found: dict[tuple[object, ...], tuple[Failure, int]] = {}
    for members in groups.values():
        if len(found) >= most:
            break
        trial, first = members[0]
        shrunk = Shrinker(trial)(first)
        alike = (shrunk.kind, tuple(sorted(shrunk.case.spatial)), shrunk.case.layout)
        kept, count = found.get(alike, (shrunk, 0))
        found[alike] = (kept, count + len(members))
    return sorted(found.values(), key=lambda each: _weight(each[0]))


def _weight(failure: Failure) -> tuple[bool, int]:
    size = math.prod(failure.input_shape) + math.prod(failure.output_shape)
    return failure.off <= ROUNDING, size


def _tables(asked: Check, failure: Failure) -> Tables | None:
    if failure.element is None:
        return None
    operator = asked.operator.for_output(failure.output_shape)
    call = Call(operator, failure.case.dtype, failure.input_shape, failure.output_shape)
    return tables([call])[0]


def _text(
    asked: Check,
    tally: CheckTally,
    smallest: Sequence[tuple[Failure, int]],
    told: Sequence[Tables | None],
) -> list[str]:
    ulps = counted(asked.tolerance, "ulp")
    verdict = "all agree" if not tally.failures else f"{len(tally.failures)} differ"
    if asked.tolerance:
        verdict += f" by more than {ulps}" if tally.failures else f" within {ulps}"
    unfit = f"; {tally.unfit} more do not fit these attributes" if tally.unfit else ""
    lines = [
        f"{asked.name} against {asked.operator!r}",
        f"{tally.ran} cases: {verdict}{unfit}",
    ]
    rounded = [failure.off for _, failure in tally.failures if failure.off <= ROUNDING]
    if rounded:
        enough = math.ceil(max(1, *rounded))
        lines.append(
            f"{len(rounded)} of these by rounding or a zero's sign alone, which "
            f"--tolerance {enough} lets pass"
        )
    for place, ((failure, count), tables_) in enumerate(zip(smallest, told, strict=True), 1):
        lines += ["", *_failure_lines(asked, place, failure, count, tables_)]
    return lines


def _failure_lines(
    asked: Check, place: int, failure: Failure, count: int, tables_: Tables | None
) -> list[str]:
    case = failure.case
    layout = "" if case.layout == "contiguous" else f", {case.layout} in memory"
    like = "" if count == 1 else f" (the smallest of {count} like it)"
    lines = [
        f"{place}. {case.dtype} {failure.input_shape} to {failure.output_shape}{layout}{like}",
        f"   given {_values(failure)}",
    ]
    if failure.element is None or tables_ is None:
        return [*lines, f"   {failure.words}"]
    index = f"[{', '.join(map(str, failure.element))}]"
    ulps = f", {_ulps(failure.ulps)} ulps off" if failure.ulps else ""
    wrong = f"{failure.wrong} of {np.prod(failure.output_shape)} elements"
    lines.append(
        f"   at {index}: expected {number(failure.expected)}, came {number(failure.came)}{ulps}; "
        f"{wrong} wrong"
    )
    return [*lines, *(f"   {line}" for line in _why(asked, failure, tables_))]


def _ulps(off: float) -> str:
    """Write a distance, rounded up, so that it is visibly above a tolerance."""
    return f"{math.ceil(off * 100) / 100:.2f}".rstrip("0").rstrip(".")


def _values(failure: Failure) -> str:
    given = failure.given
    if failure.case.given is None or given.size > MOST_VALUES:
        return f"{failure.case.values} values"
    nonzero = np.argwhere(given != 0)
    if given.size > 1 and len(nonzero) == 1:
        index = f"[{', '.join(map(str, nonzero[0].tolist()))}]"
        return f"{number(given[tuple(nonzero[0])])} at {index}, else 0"
    return " ".join(map(number, given.ravel()))


def _why(asked: Check, failure: Failure, told: Tables) -> list[str]:
    gradient = OPERATORS[asked.operator.name].gradient
    assert failure.element is not None  # noqa: S101 (the caller has looked)
    why = reasons([(told, gradient)], failure.element)
    chosen = [reason for reason in why if not told.axes[reason.axis].is_identity] or why[-1:]
    return [line for reason in chosen for line in words(reason, [""])]


def _facts(
    asked: Check,
    tally: CheckTally,
    smallest: Sequence[tuple[Failure, int]],
    told: Sequence[Tables | None],
) -> dict[str, Any]:
    return {
        "function": asked.name,
        "operator": asked.operator.name,
        "tolerance": asked.tolerance,
        "cases": tally.ran,
        "equal": tally.equal,
        "different": len(tally.failures),
        "unfit": tally.unfit,
        "failures": [
            _failure_facts(asked, failure, count, tables_)
            for (failure, count), tables_ in zip(smallest, told, strict=True)
        ],
    }


def _failure_facts(
    asked: Check, failure: Failure, count: int, told: Tables | None
) -> dict[str, Any]:
    case = failure.case
    facts_: dict[str, Any] = {
        "dtype": str(case.dtype),
        "input_shape": list(failure.input_shape),
        "output_shape": list(failure.output_shape),
        "layout": case.layout,
        "values": case.values if case.given is None else [as_json(each) for each in case.given],
        "alike": count,
    }
    if failure.element is None or told is None:
        return {**facts_, "error": failure.words}
    gradient = OPERATORS[asked.operator.name].gradient
    return {
        **facts_,
        "element": list(failure.element),
        "expected": as_json(failure.expected),
        "came": as_json(failure.came),
        "ulps": failure.ulps,
        "wrong": failure.wrong,
        "why": [facts(reason) for reason in reasons([(told, gradient)], failure.element)],
    }
