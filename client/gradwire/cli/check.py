"""`gradwire check`: compares a function under development with an operator."""

from __future__ import annotations

import importlib
import math
import runpy
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradwire import Client
from gradwire.cli.compare import Difference, difference, finfo
from gradwire.cli.connection import Connection
from gradwire.cli.explain import lines_of, reasons, tables
from gradwire.cli.options import (
    dtype_option,
    json_option,
    operator_options,
    seed_option,
    server_options,
)
from gradwire.cli.output import (
    DIFFERENT,
    HELP,
    Facts,
    InvalidUsage,
    json_number,
    load,
    number,
    tell,
)
from gradwire.errors import InvalidRequestError, LimitExceededError, counted
from gradwire.ops import Operator
from gradwire.tensors import Array, DType, Shape, to_array

# Lengths of the forward's input and output along an axis.
Pair = tuple[int, int]
_LENGTHS = tomllib.loads(files("gradwire.cli").joinpath("check.toml").read_text("utf-8"))
PAIRS: list[Pair] = list(map(tuple, _LENGTHS["pairs"]))
# Length up to which a pair is used on all axes at once.
LONG = 32
# Those of the other axes, and lengths of batch and channel.
SHORT: list[Pair] = [(1, 1), (2, 2), (2, 3), (7, 3), (4, 8)]
BATCHES: list[Pair] = [(1, 1), (1, 5), (3, 1), (2, 3)]
# How often each pair is tried for a type.
ROUNDS = 4
# Ranks in the order of trial; most kernels have the first one.
RANKS = (4, 3, 5, 2, 1)
# Ulps that another order of summation may differ by.
ROUNDING = 4
# Limits of shrinking: cases that are tried, and elements up to which each one is tried alone.
TRIES, FEW = 1000, 64

# Errors of the operator for cases that it does not take.
UNFIT = (InvalidRequestError, LimitExceededError)

# Makes values of a shape, given the limits of their type.
Maker = Callable[[Shape, np.random.Generator, Any], Array]


def _with(*specials: float) -> Maker:
    """Return a maker of random values with at least one special value."""

    def make(shape: Shape, noise: np.random.Generator, _: Any) -> Array:
        pool = [*specials, *noise.standard_normal(4 * len(specials))]
        values = noise.choice(pool, shape)
        values.flat[0] = specials[-1]
        return values

    return make


VALUES: dict[str, Maker] = {
    "random": lambda shape, noise, _: noise.standard_normal(shape),
    "counting": lambda shape, _, __: 1 + np.arange(math.prod(shape)).reshape(shape) % 97,
    "ones": lambda shape, _, __: np.ones(shape),
    "zeros": _with(0.0, -0.0),
    "nan": _with(np.nan),
    "infinity": _with(np.inf, -np.inf),
    "tiny": lambda shape, noise, limits: (
        noise.integers(-50, 50, shape) * float(limits.smallest_subnormal)
    ),
    "huge": lambda shape, noise, limits: noise.uniform(-1, 1, shape) * float(limits.max),
}
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": np.ascontiguousarray,
    "transposed": np.asfortranarray,
    "every second": lambda values: np.stack([values, values * 0], -1)[..., 0],
    # Every batch reads the elements of the first one.
    "broadcast": lambda values: as_strided(values, strides=(0, *values.strides[1:])),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the function that is checked.

    pairs   lengths of each axis, in the forward's input and output
    values  a key of VALUES
    layout  a key of LAYOUTS
    alone   place in row-major order and value of the only element that is not 0, in place of values
    """

    dtype: DType
    pairs: tuple[Pair, ...]
    values: str
    layout: str = "contiguous"
    alone: tuple[int, float] | None = None

    def array(self, shape: Shape, *, seed: int) -> Array:
        """Make the input tensor of the function."""
        if self.alone is not None:
            place, value = self.alone
            values: Array = np.zeros(shape)
            values.flat[place] = value
        else:
            values = VALUES[self.values](shape, np.random.default_rng(seed), finfo(self.dtype))
        with np.errstate(all="ignore"):
            return LAYOUTS[self.layout](values.astype(self.dtype))


def all_cases(
    dtypes: Iterable[DType], values: Sequence[str], *, rank: int, channels_last: bool
) -> Iterator[Case]:
    """Yield the cases for tensors of a rank.

    A pair is on one axis in two rounds, and on all of them in two others. Every second case has the
    first kind of values. With 2 axes one is the channel, with 1 none.
    """
    axes = max(rank - 2, 1)
    for dtype, (count, pair) in product(dtypes, enumerate(PAIRS * ROUNDS)):
        turn = count // len(PAIRS)
        spatial = [SHORT[(count + axis) % len(SHORT)] for axis in range(axes)]
        spatial[turn // 2 % axes] = pair
        if turn % 2 and max(pair) <= LONG:
            spatial = [pair] * axes
        batch, channel = ((length, length) for length in BATCHES[(count + turn) % len(BATCHES)])
        shape = (batch, *spatial, channel) if channels_last else (batch, channel, *spatial)
        kind = values[count // 2 % len(values) if count % 2 else 0]
        layout = [*LAYOUTS][count // 4 % len(LAYOUTS)]
        yield Case(dtype, shape[-rank:], kind, layout)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a case.

    given     argument of the function
    expected  the result of the operator
    came      that of the function, or a description of a failure that is not a wrong number
    found     their difference, in ulps of the same sum over magnitudes, the unit of a tolerance;
              None without a result to compare
    """

    case: Case
    given: Array
    expected: Array
    came: Array | str
    found: Difference | None

    @property
    def kind(self) -> str:
        """Key that differs between failures of different causes."""
        if isinstance(self.came, str):
            return " ".join(self.came.split()[:3])
        ulps = self.ulps
        return "not finite" if math.isinf(ulps) else "value" if ulps else "sign of zero"

    @property
    def ulps(self) -> float:
        """Largest difference; infinite without a result to compare."""
        return self.found.ulps if self.found else math.inf


@dataclass(slots=True, kw_only=True)
class Trial:
    """A check: its constant parts, and counts of the cases' outcomes.

    function   (gradient, output_shape) -> result, of NumPy arrays
    tolerance  allowed error of a result, in ulps of the sum of magnitudes
    reason     why the operator refused the last case that does not fit
    """

    client: Client
    operator: Operator
    function: Callable[[Any, Shape], Any]
    tolerance: int
    seed: int
    ran: int = 0
    unfit: int = 0
    reason: str = ""
    failures: list[Failure] = field(default_factory=list[Failure])

    def __call__(self, case: Case) -> Failure | None:
        """Run a case; return its failure, or None if it passes.

        Raises an error of UNFIT if the operator does not take the case.
        """
        given_shape, output_shape = zip(*case.pairs, strict=True)
        if self.operator.gradient:
            given_shape, output_shape = output_shape, given_shape
        given = case.array(given_shape, seed=self.seed)
        kept = given.copy()
        operator = self.operator.for_output(output_shape)
        evaluate = partial(self.client.evaluate, operator, output_shape=output_shape)
        expected = evaluate(kept)
        came = self._result(given, expected)
        if given.tobytes() != kept.tobytes():
            came = "it wrote to its argument"
        if isinstance(came, str):
            return Failure(case, kept, expected, came, None)
        sums = partial(evaluate, np.abs(kept))
        found = difference(expected, came, sums, tolerance=self.tolerance)
        return None if found is None else Failure(case, kept, expected, came, found)

    def _result(self, given: Array, expected: Array) -> Array | str:
        """Return the function's result, or a text that names its fault."""
        try:
            # Infinities and NaN are part of the cases, and no reason for warnings.
            with np.errstate(all="ignore"):
                result = self.function(given, expected.shape)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the finding
            return f"it raised {type(error).__name__}: {' '.join(str(error).split())}"
        try:
            array = to_array(result)
        except (TypeError, InvalidRequestError):
            return f"it returned {type(result).__name__}, not an array of numbers"
        if (array.shape, array.dtype) != (expected.shape, given.dtype):
            return (
                f"it returned {array.dtype} {array.shape}; "
                f"{given.dtype} {expected.shape} was asked for"
            )
        return array.copy()

    def run(self, cases: Iterable[Case]) -> bool:
        """Run cases; return whether a length changes in some valid case.

        A case is valid if the operator takes it.
        """
        resampled = False
        for case in cases:
            try:
                failure = self(case)
            except UNFIT as error:
                self.unfit += 1
                self.reason = str(error)
                continue
            self.ran += 1
            resampled |= any(one != other for one, other in case.pairs)
            if failure is not None:
                self.failures.append(failure)
        return resampled

    def lines(self) -> list[str]:
        """Report the number of failed cases, and those due to rounding."""
        verdict = f"{len(self.failures)} differ" if self.failures else "all agree"
        allowed = (
            f", with a tolerance of {counted(self.tolerance, 'ulp')}" if self.tolerance else ""
        )
        unfit = f"; {self.unfit} more do not fit these attributes" if self.unfit else ""
        lines = [f"{self.ran} cases: {verdict}{allowed}{unfit}"]
        rounded = [each.ulps for each in self.failures if each.ulps <= ROUNDING]
        if rounded:
            lines.append(
                f"{len(rounded)} of these by rounding or a zero's sign alone, which "
                f"--tolerance {math.ceil(max(1, *rounded))} lets pass"
            )
        return lines


def _tensor(array: Array) -> Any:
    """Lay a torch tensor over an array's memory."""
    torch = importlib.import_module("torch")
    # NumPy's name for bfloat16 is unknown to torch.
    bits = torch.from_numpy(array.view(f"i{array.itemsize}"))
    return bits.view(getattr(torch, str(array.dtype)))


def load_function(name: str) -> Callable[[Any, Shape], Any]:
    """Find "module:function" or "file.py:function", also in the current folder."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise InvalidUsage(f"{name!r} is not a function; give module:function, or file.py:function")
    # For imports of the function, too.
    sys.path.insert(0, str(Path.cwd()))
    try:
        is_file = place.endswith(".py")
        names = runpy.run_path(place) if is_file else vars(importlib.import_module(place))
    except (Exception, SystemExit) as error:
        message = f"{place} cannot be imported: {type(error).__name__}: {error}"
        raise InvalidUsage(message) from error
    if attribute not in names:
        raise InvalidUsage(f"{place} has no function {attribute}; give the name of one")
    function: Callable[[Any, Shape], Any] = names[attribute]
    if not callable(function):
        raise InvalidUsage(f"{name} is {type(function).__name__}; a function is needed")
    return function


def shrunk(trial: Trial, failure: Failure) -> Failure:
    """Return a similar failure that is at most as large."""
    budget = iter(range(TRIES))

    def first(cases: Iterable[Case]) -> Failure | None:
        """Return the first similar failure among some cases."""
        for case, _ in zip(cases, budget, strict=False):
            with suppress(*UNFIT):
                found = trial(case)
                if found is not None and found.kind == failure.kind:
                    return found
        return None

    while found := first(_simpler(failure.case)):
        failure = found
    given: list[float] = failure.given.astype(np.float64).ravel().tolist()
    if len(given) > FEW:
        return failure
    # Try one element that is not 0; it becomes 1 if that suffices.
    alone = (*enumerate([1.0] * len(given)), *enumerate(given))
    return first(replace(failure.case, alone=each) for each in alone) or failure


def _simpler(case: Case) -> Iterator[Case]:
    """Yield cases with one property simplified, or with one axis shorter."""
    if case.layout != "contiguous":
        yield replace(case, layout="contiguous")
    if case.values != "ones":
        yield replace(case, values="ones")
    for axis, (one, other) in enumerate(case.pairs):
        halves = (one // 2, other // 2)
        shorter = {(1, 1), halves, (one - 1, other - 1), (one - 1, other), (one, other - 1)}
        for pair in sorted(shorter - {(one, other)}):
            if min(pair) >= 1:
                yield replace(case, pairs=(*case.pairs[:axis], pair, *case.pairs[axis + 1 :]))


EXAMPLE = """\b
Example:
  gradwire check kernels.py:upsample_backward --op interpolate_backward \\
      --attr mode=bilinear --attr data_format=NCX --tolerance 2
"""


@click.command(
    short_help="Check a function of your own against an operator.",
    epilog=f"{EXAMPLE}\n{HELP}",
)
@click.argument("name", metavar="MODULE:FUNCTION")
@operator_options
@dtype_option(
    "dtypes", multiple=True, default=["float32"], help="Type of the tensors; once for each."
)
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(1, 8),
    multiple=True,
    help="Number of axes; once for each. Without it, 4, or else the first that fits.",
)
@click.option(
    "--values",
    type=click.Choice(list(VALUES)),
    multiple=True,
    default=list(VALUES),
    help="What to fill tensors with; once for each. Without it, all.",
)
@click.option(
    "--tolerance",
    type=click.IntRange(0),
    default=0,
    metavar="ULPS",
    help="How far a result may be off, in ulps of the same sum over magnitudes.",
)
@click.option("--torch", is_flag=True, help="Call the function with torch tensors.")
@seed_option
@click.option("--failures", "most", type=click.IntRange(1), default=3, help="Failures to tell.")
@server_options()
@json_option
def check(
    *,
    name: str,
    operator: Operator,
    dtypes: tuple[DType, ...],
    ranks: tuple[int, ...],
    values: tuple[str, ...],
    tolerance: int,
    torch: bool,
    seed: int,
    most: int,
    server: Connection,
    as_json: bool,
) -> int:
    """Check a function of yours against an operator, over awkward cases.

    FUNCTION is called with a gradient, a NumPy array of any strides, and the shape of its result, a
    tuple; it returns an array of that shape and of the gradient's type. With --torch both are
    tensors. For a forward operator it is given the input in place of a gradient. MODULE may be the
    name of a file that ends in .py. Leave sizes out: each case has its own.

    Each failure is shrunk to the smallest similar case. Exit with 0 if no case fails, with 9
    otherwise.
    """
    if torch:
        load("torch", "pip install torch")
    function = load_function(name)
    fitting = [rank for rank in ranks or RANKS if operator.min_rank <= rank <= operator.max_rank]
    if not fitting:
        raise InvalidUsage(f"--rank: {operator.name} takes tensors of {operator.ranks()} axes")
    with server.client(backend="numpy_cpu") as client:
        trial = Trial(
            client=client,
            operator=operator,
            function=(lambda given, shape: function(_tensor(given), shape)) if torch else function,
            tolerance=tolerance,
            seed=seed,
        )
        for rank in fitting:
            # The channel is tried before the spatial axes, then behind them.
            for last in (False, True):
                cases = all_cases(dict.fromkeys(dtypes), values, rank=rank, channels_last=last)
                if trial.run(cases):
                    break
            if trial.ran and not ranks:
                break
        if not trial.ran:
            hint = "each case has its own sizes: where some are given, leave them out"
            raise InvalidUsage(
                f"no case fits the operator with these attributes: {trial.reason}; {hint}"
            )
        findings = [_told(operator, *one) for one in smallest(trial, most)]
    facts = {
        "function": name,
        "operator": operator.name,
        "tolerance": tolerance,
        "cases": trial.ran,
        "equal": trial.ran - len(trial.failures),
        "different": len(trial.failures),
        "unfit": trial.unfit,
        "failures": [facts_ for facts_, _ in findings],
    }
    lines = [f"{name} against {operator!r}", *trial.lines()]
    for number_, (_, told) in enumerate(findings, 1):
        lines += ["", f"{number_}. " + "\n   ".join(told)]
    tell(facts, lines, as_json=as_json)
    return DIFFERENT if trial.failures else 0


def smallest(trial: Trial, most: int) -> Iterable[tuple[Failure, int]]:
    """Return shrunk failures, smallest first, and the number like each."""
    groups: dict[object, list[Failure]] = defaultdict(list)
    # Failures that rounding explains are last.
    for failure in sorted(
        trial.failures, key=lambda one: (one.ulps <= ROUNDING, one.given.size + one.expected.size)
    ):
        case = failure.case
        groups[failure.kind, case.dtype, case.values, case.layout].append(failure)
    found: dict[object, tuple[Failure, int]] = {}
    for members in groups.values():
        if len(found) < most:
            small = shrunk(trial, members[0])
            key = (small.kind, *sorted(small.case.pairs), small.case.layout)
            first, alike = found.get(key, (small, 0))
            found[key] = (first, alike + len(members))
    return found.values()


def _told(operator: Operator, failure: Failure, alike: int) -> tuple[Facts, list[str]]:
    """Describe a failure as a JSON object and as lines."""
    case, given, came, found = failure.case, failure.given, failure.came, failure.found
    shapes = given.shape, failure.expected.shape
    facts: Facts = {
        "dtype": str(case.dtype),
        "input_shape": shapes[0],
        "output_shape": shapes[1],
        "layout": case.layout,
        "values": case.values if case.alone is None else list(map(json_number, given.ravel())),
        "alike": alike,
    }
    values = f"{case.values} values"
    if case.alone is not None:
        place = tuple(map(int, np.unravel_index(case.alone[0], given.shape)))
        values = f"{number(given[place])} at {[*place]}, else 0"
    layout = "" if case.layout == "contiguous" else f", {case.layout} in memory"
    like = "" if alike == 1 else f" (the smallest of {alike} like it)"
    lines = [f"{case.dtype} {shapes[0]} to {shapes[1]}{layout}{like}", f"given {values}"]
    if isinstance(came, str) or found is None:
        return {**facts, "error": came}, [*lines, str(came)]
    (axes,) = tables([operator.for_output(shapes[1])], case.dtype, *shapes)
    element = found.largest
    why = reasons([axes], element)
    expected, wrong = failure.expected[element], came[element]
    facts |= {
        "element": element,
        "expected": json_number(expected),
        "came": json_number(wrong),
        "ulps": found.ulps if math.isfinite(found.ulps) else None,
        "wrong": found.count,
        "why": [reason.facts() for reason in why],
    }
    # Rounded up, so that it is visibly above a tolerance.
    off = f"{np.ceil(found.ulps * 100) / 100:.12g} ulps off"
    lines.append(
        f"at {[*element]}: expected {number(expected)}, came {number(wrong)}, {off}; "
        f"{found.count} of {came.size} elements wrong"
    )
    return facts, [*lines, *lines_of(axes, why)]
