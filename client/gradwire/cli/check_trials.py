"""Cases of `gradwire check`: their inputs, the user's function, and shrinking."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gradwire import Client
from gradwire.cli.compare import Bounds, differing, ulps_off
from gradwire.cli.exits import INVALID, CommandError
from gradwire.errors import InvalidRequestError, LimitExceededError
from gradwire.ops import OPERATORS, Operator
from gradwire.tensors import to_array

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """Where batch, channel and spatial axes are.

    rank           of the tensors; of 2 axes one is the channel, of 1 none
    channels_last  whether the channel is behind the spatial axes
    """

    rank: int
    channels_last: bool

    def shape(self, batch: Pair, spatial: Shape) -> Shape:
        """Return the shape of a tensor."""
        leading = batch[len(batch) - (self.rank - len(spatial)) :]
        if self.channels_last:
            return (*leading[:1], *spatial, *leading[1:])
        return (*leading, *spatial)


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a case.

    given     what the function was given
    words     what went wrong, where that was not a number
    element   index of the first wrong element; None where there is no result to look into
    expected  its value; came: the function's
    ulps      how far it is off, in ulps of the same sum over magnitudes, which a tolerance is
              compared with; 0 for zeros of two signs, None with NaN and infinities
    off       how far any is off at most, in these ulps; inf with NaN and infinities
    wrong     how many are
    """

    case: Case
    input_shape: Shape
    output_shape: Shape
    given: Array
    words: str = ""
    element: Shape | None = None
    expected: Any = None
    came: Any = None
    ulps: float | None = None
    off: float = math.inf
    wrong: int = 0

    @property
    def kind(self) -> str:
        """Tell failures apart that have different causes."""
        if self.words:
            return " ".join(self.words.split()[:3])
        return "not finite" if self.ulps is None else "value" if self.ulps else "sign of zero"


class Unfit(Exception):  # noqa: N818 (no fault)
    """The operator does not take a case."""


@dataclass(frozen=True, slots=True)
class Trial:
    """All that does not change from case to case.

    tolerance  ulps of the sum of magnitudes that a result may be off
    """

    client: Client
    operator: Operator
    candidate: Candidate
    frame: Frame
    tolerance: int
    seed: int

    def __call__(self, case: Case) -> Failure | None:
        """Run a case; return None where the function does as the operator does.

        Raises Unfit.
        """
        given_shape, output_shape = self.shapes(case)
        memory = case.memory(given_shape, seed=self.seed)
        given = memory.view()
        expected = self._evaluate(given, output_shape)
        about = (case, given_shape, output_shape, given)
        try:
            came = self.candidate(memory, output_shape)
        except CandidateError as error:
            return Failure(*about, words=str(error))
        wrong = differing(expected, came)
        if not wrong.any():
            return None
        off = ulps_off(expected, came, self._evaluate(np.abs(given), output_shape))
        if self.tolerance:
            wrong &= off > self.tolerance
            if not wrong.any():
                return None
        place: list[int] = np.argwhere(wrong)[0].tolist()
        element = tuple(place)
        one, other = expected[element], came[element]
        finite = bool(np.isfinite(one) & np.isfinite(other))
        return Failure(
            *about,
            element=element,
            expected=one,
            came=other,
            ulps=float(off[element]) if finite else None,
            off=float(off[wrong].max()),
            wrong=int(wrong.sum()),
        )

    def shapes(self, case: Case) -> tuple[Shape, Shape]:
        """Return the shapes of argument and result."""
        source = self.frame.shape(case.batch, tuple(pair[0] for pair in case.spatial))
        result = self.frame.shape(case.batch, tuple(pair[1] for pair in case.spatial))
        gradient = OPERATORS[self.operator.name].gradient
        return (result, source) if gradient else (source, result)

    def _evaluate(self, given: Array, output_shape: Shape) -> Array:
        try:
            operator = self.operator.for_output(output_shape)
            return self.client.evaluate(operator, given, output_shape=output_shape)
        except (InvalidRequestError, LimitExceededError) as error:
            raise Unfit(str(error)) from error


# Lengths of the forward's input and output along an axis.
Pair = tuple[int, int]

# Single elements, doubled, halved, primes both ways, even and odd, ratios such as 2.3 and 14, steps
# that leave elements unread, and lengths of one element more or less.
PAIRS: tuple[Pair, ...] = (
    *product((1, 2, 3), (1, 2, 3)),
    *((1, 7), (7, 1), (2, 4), (4, 2), (3, 6), (6, 3), (5, 10), (10, 5), (4, 6), (6, 4), (9, 4)),
    *((3, 7), (7, 3), (5, 13), (13, 5), (10, 23), (23, 10), (5, 30), (30, 5), (7, 100), (100, 7)),
    *((16, 17), (17, 16), (31, 32), (32, 31), (11, 11), (64, 128), (128, 64), (129, 50)),
)
TALL_AND_WIDE: tuple[tuple[Pair, Pair], ...] = (
    ((200, 399), (1, 1)),
    ((1, 1), (399, 200)),
    ((150, 2), (2, 150)),
    ((3, 90), (90, 3)),
)
# Shapes for special values and memory layouts.
MIXED: tuple[Pair, ...] = ((3, 7), (7, 3), (4, 8), (8, 4))
BATCHES: tuple[Pair, ...] = ((1, 1), (1, 5), (3, 1), (2, 3))
# Length up to which a pair stands on all axes at once.
LONG = 32
# How often one is strewn among others.
SPECIAL = 0.2
LAYOUTS = ("contiguous", "transposed", "every second", "broadcast")


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor as it lies in memory: elements of a base array, by strides in elements."""

    base: Array
    shape: Shape
    strides: Shape

    def view(self) -> Array:
        """Return the tensor."""
        steps = tuple(step * self.base.itemsize for step in self.strides)
        return as_strided(self.base, self.shape, steps)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the function that is checked.

    batch    batch and channel
    spatial  lengths of each spatial axis
    values   a key of VALUES
    layout   one of LAYOUTS
    given    the elements themselves, in row-major order, in place of values
    """

    dtype: np.dtype[Any]
    batch: Pair
    spatial: tuple[Pair, ...]
    values: str = "random"
    layout: str = "contiguous"
    given: tuple[float, ...] | None = None

    def memory(self, shape: Shape, *, seed: int) -> Memory:
        """Make the tensor that the function is given."""
        if self.given is not None:
            values = np.array(self.given).astype(self.dtype).reshape(shape)
        else:
            values = VALUES[self.values](shape, self.dtype, np.random.default_rng(seed))
        return _laid_out(values, self.layout)


def all_cases(
    dtypes: tuple[np.dtype[Any], ...], values: tuple[str, ...], *, rank: int
) -> Iterator[Case]:
    """Yield the cases for tensors of a rank, the plainest first."""
    axes = max(rank - 2, 1)
    for dtype in dtypes:
        plain = [Case(dtype, (1, 1), spatial, values[0]) for spatial in _shapes(axes)]
        yield from plain
        yield from (Case(dtype, batch, ((3, 7),) * axes, values[0]) for batch in BATCHES)
        for pair in MIXED:
            for special in values[1:]:
                yield Case(dtype, (1, 2), (pair,) * axes, special)
            for layout in LAYOUTS[1:]:
                yield Case(dtype, (2, 3), (pair,) * axes, values[0], layout)


def _shapes(axes: int) -> Iterator[tuple[Pair, ...]]:
    """Yield each pair on the last axis, on the first and on all; then long and narrow ones."""
    seen: set[tuple[Pair, ...]] = set()
    for pair in PAIRS:
        for spatial in ((*[(2, 2)] * (axes - 1), pair), (pair, *[(2, 2)] * (axes - 1))):
            seen.add(spatial)
        if axes == 1 or max(pair) <= LONG:
            seen.add((pair,) * axes)
    if axes > 1:
        seen |= {(*[(1, 1)] * (axes - 2), *pairs) for pairs in TALL_AND_WIDE}
    yield from sorted(seen, key=lambda spatial: (sum(map(sum, spatial)), spatial))


def _random(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
    return noise.standard_normal(shape).astype(dtype)


def _counting(shape: Shape, dtype: np.dtype[Any], _: np.random.Generator) -> Array:
    return (1 + np.arange(np.prod(shape)) % 97).reshape(shape).astype(dtype)


def _ones(shape: Shape, dtype: np.dtype[Any], _: np.random.Generator) -> Array:
    return np.ones(shape, dtype)


def _with(*specials: float) -> Callable[[Shape, np.dtype[Any], np.random.Generator], Array]:
    """Return a maker of random values with at least one special value."""

    def make(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
        values = noise.standard_normal(shape)
        chosen = noise.random(shape) < SPECIAL
        chosen.flat[noise.integers(chosen.size)] = True
        return np.where(chosen, noise.choice(specials, shape), values).astype(dtype)

    return make


def _tiny(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
    return (noise.integers(-50, 50, shape) * Bounds.of(dtype).least).astype(dtype)


def _huge(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
    return (noise.uniform(-1, 1, shape) * Bounds.of(dtype).most).astype(dtype)


VALUES: Mapping[str, Callable[[Shape, np.dtype[Any], np.random.Generator], Array]] = {
    "random": _random,
    "counting": _counting,
    "ones": _ones,
    "zeros": _with(0.0, -0.0),
    "nan": _with(np.nan),
    "infinity": _with(np.inf, -np.inf),
    "tiny": _tiny,
    "huge": _huge,
}


def _laid_out(values: Array, layout: str) -> Memory:
    shape = values.shape
    packed = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    if layout == "transposed":
        strides = tuple(int(np.prod(shape[:axis])) for axis in range(len(shape)))
        return Memory(values.ravel(order="F"), shape, strides)
    if layout == "every second":
        base = np.zeros(2 * values.size, values.dtype)
        base[::2] = values.ravel()
        return Memory(base, shape, tuple(2 * stride for stride in packed))
    if layout == "broadcast":
        # One batch for all: axes of stride 0 lead.
        inner = tuple(stride if axis else 0 for axis, stride in enumerate(packed))
        return Memory(values[0].ravel(), shape, inner)
    return Memory(values.ravel(), shape, packed)


class CandidateError(Exception):
    """The function did not return an array of the right kind."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function (gradient, output_shape) -> result, of NumPy arrays or of torch tensors."""

    function: Callable[[Any, Shape], Any]
    torch: bool

    def __call__(self, memory: Memory, output_shape: Shape) -> Array:
        """Return its result; raise CandidateError where that is none, and where it writes."""
        base = memory.base.copy()
        given = Memory(base, memory.shape, memory.strides)
        try:
            # Infinities and NaN are part of the cases, and no reason to warn.
            with np.errstate(all="ignore"):
                result = self.function(_tensor(given) if self.torch else given.view(), output_shape)
        except (Exception, SystemExit) as error:
            words = " ".join(str(error).split())
            raise CandidateError(f"it raised {type(error).__name__}: {words}") from error
        if base.tobytes() != memory.base.tobytes():
            raise CandidateError("it wrote to its argument")
        try:
            array = to_array(result)
        except TypeError:
            array = np.array(None)
        if array.dtype == object:
            raise CandidateError(f"it returned {type(result).__name__}, no array of numbers")
        if array.shape != output_shape:
            raise CandidateError(f"it returned shape {array.shape}; {output_shape} was asked for")
        if array.dtype != base.dtype:
            raise CandidateError(f"it returned {array.dtype}; {base.dtype} was given")
        return array.copy()


def load_candidate(name: str, *, torch: bool) -> Candidate:
    """Find "module:function" or "file.py:function", from the current folder too."""
    place, separator, attribute = name.rpartition(":")
    if not separator or not place or not attribute:
        message = f"{name!r} is no function; give module:function, or file.py:function"
        raise CommandError(message, code=INVALID)
    if torch and importlib.util.find_spec("torch") is None:
        raise CommandError("--torch: PyTorch is not installed here: pip install torch")
    module = _module(place)
    function: Any = module
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        kind = "nothing" if function is None else type(function).__name__
        raise CommandError(f"{name}: {attribute} is {kind}; a function is needed", code=INVALID)
    return Candidate(function, torch)


def _module(place: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None  # noqa: S101 (the ending is known)
        assert spec.loader is not None  # noqa: S101 (likewise)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        message = f"{place} cannot be imported: {type(error).__name__}: {error}"
        raise CommandError(message, code=INVALID) from error
    finally:
        sys.path.remove(str(Path.cwd()))
    return module


def _tensor(memory: Memory) -> Any:
    """Lay a torch tensor over the memory."""
    torch = importlib.import_module("torch")
    base = memory.base
    if str(base.dtype) == "bfloat16":
        # NumPy's name for it is unknown to torch.
        flat = torch.from_numpy(base.view(np.int16)).view(torch.bfloat16)
    else:
        flat = torch.from_numpy(base)
    return flat.as_strided(memory.shape, memory.strides)


# Elements up to which each one is tried alone, or left out.
FEW = 64

# Inputs and outputs together up to which all pairs of lengths are tried.
SMALL = 12


@dataclass(slots=True)
class Shrinker:
    """Tries smaller cases while there are tries left."""

    trial: Callable[[Case], Failure | None]
    tries: int = 1000

    def __call__(self, failure: Failure) -> Failure:
        """Return a failure of the same kind, at most as large."""
        smaller = True
        while smaller:
            smaller = False
            for candidates in (_plainer, _smaller):
                found = self._first(candidates(failure.case), failure)
                if found is not None:
                    failure, smaller = found, True
        return self._fewer_values(failure)

    def _first(self, cases: Iterator[Case], failure: Failure) -> Failure | None:
        """Return the first of some cases that fails as another one does."""
        for case in cases:
            if self.tries <= 0:
                return None
            self.tries -= 1
            try:
                found = self.trial(case)
            except Unfit:
                continue
            if found is not None and found.kind == failure.kind:
                return found
        return None

    def _fewer_values(self, failure: Failure) -> Failure:
        """Keep one element that is not 0, or as few as do; 1 where that is enough."""
        given = failure.given.astype(np.float64).ravel()
        if len(given) > FEW:
            return failure
        ones = [1.0] * len(given)
        alone = (
            tuple(value if other == place else 0.0 for other in range(len(given)))
            for values in (ones, given.tolist())
            for place, value in enumerate(values)
        )
        found = self._first((replace(failure.case, given=values) for values in alone), failure)
        if found is not None:
            return found
        kept = [float(value) for value in given]
        for place, value in enumerate(kept):
            for simpler in (0.0, 1.0):
                if value == simpler:
                    break
                values = (*kept[:place], simpler, *kept[place + 1 :])
                found = self._first(iter([replace(failure.case, given=values)]), failure)
                if found is not None:
                    failure, kept = found, list(values)
                    break
        return failure


def _plainer(case: Case) -> Iterator[Case]:
    """Yield a case with one thing made plain."""
    if case.layout != "contiguous":
        yield replace(case, layout="contiguous")
    if case.values not in {"ones", "counting"}:
        yield replace(case, values="counting")
    if str(case.dtype) != "float32":
        yield replace(case, dtype=np.dtype(np.float32))
    if case.batch != (1, 1):
        yield replace(case, batch=(1, 1))
        yield replace(case, batch=(1, case.batch[1]))
        yield replace(case, batch=(case.batch[0], 1))
        yield replace(case, batch=(min(2, case.batch[0]), min(2, case.batch[1])))


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with one spatial axis shorter, the shortest first."""
    for axis, pair in enumerate(case.spatial):
        for shorter in _pairs_below(pair):
            yield replace(case, spatial=(*case.spatial[:axis], shorter, *case.spatial[axis + 1 :]))


def _pairs_below(pair: Pair) -> Iterator[Pair]:
    """Yield pairs of fewer elements together: all small ones, then halves, then one less."""
    total = sum(pair)
    for size in range(2, min(total, SMALL + 1)):
        for inputs in range(1, size):
            yield inputs, size - inputs
    halves = (-(-pair[0] // 2), -(-pair[1] // 2))
    for shorter in (
        halves,
        (pair[0] - 1, pair[1] - 1),
        (pair[0] - 1, pair[1]),
        (pair[0], pair[1] - 1),
    ):
        if min(shorter) >= 1 and SMALL < sum(shorter) < total:
            yield shorter
