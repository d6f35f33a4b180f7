"""Types common to all dialects: calls and lazily built axes.

Calls are in forward terms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from gradwire_server.errors import InvalidFieldError, counted, shortest
from gradwire_server.plans.banded_map import BandedMap
from gradwire_server.plans.cancellation import ask
from gradwire_server.plans.sampling import BLOCK_TAPS, Taps

Shape = tuple[int, ...]

# The operator's own dataclass of gradwire.ops, which documents its attributes, has checked each
# value and tells an attribute's path. Dialects import nothing of the wire, nor its type.
Attributes: TypeAlias = Any

FLOAT32: Final[np.dtype[np.floating]] = np.dtype(np.float32)

# Of tables while they are built: measured, and held by tests for every dialect.
_OUTPUT_WORK: Final = 8
_OUTPUT_BYTES: Final = 160
_TAP_BYTES: Final = 18
_INPUT_BYTES: Final = 64
_BLOCK_BYTES: Final = 10 << 20


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator, in terms of its forward.

    operator  the member of the request's operator
    source    shape of the forward's input, which is a gradient's output
    result    shape of the forward's output, which is a gradient's input
    gradient  whether the call runs from result to source
    compute   compute type of the tensors: float32, or float64 for float64 tensors
    """

    operator: str
    source: Shape
    result: Shape
    gradient: bool
    compute: np.dtype[np.floating] = FLOAT32

    @property
    def source_sizes(self) -> str:
        """Path of the source's sizes in the request."""
        return "output.sizes" if self.gradient else "input.sizes"

    @property
    def result_sizes(self) -> str:
        """Path of the result's sizes in the request."""
        return "input.sizes" if self.gradient else "output.sizes"


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis that a forward operator may change.

    Its table is not computed yet.

    inputs, outputs  lengths in the forward's direction
    most_taps        most taps any output has, so that the table's size is known before it is built
    sample           (*arguments, outputs int64[some]) -> their taps; called once the limits are
                     known to hold, for blocks of outputs, which bound temporary memory
    arguments        equal axes share one table
    in_float32       whether coordinates are float32 numbers, which bounds the lengths
    padded           length of the inputs with padding, if there is any
    window           elements weighed for the sum of an output's weights, besides its taps
    effort           cost of one tap relative to one of a few sums and products
    """

    inputs: int
    outputs: int
    most_taps: int
    sample: Callable[..., Taps]
    arguments: tuple[Hashable, ...]
    in_float32: bool = True
    padded: int = 0
    window: int = 0
    effort: int = 1

    @property
    def most_entries(self) -> int:
        """Upper bound of the entries of the table.

        Weights computed for the table count too.
        """
        return self.outputs * (max(self.most_taps, self.window) + 1) + self.inputs

    @property
    def work(self) -> int:
        """Estimated cost of building the table, in plain taps.

        The unit is the time of one plain tap.
        """
        computed = self.effort * (self.most_taps + self.window)
        return self.inputs + self.outputs * (_OUTPUT_WORK + computed)

    @property
    def memory_bytes(self) -> int:
        """Upper bound of memory for building the table and its adjoint.

        In bytes.
        """
        row = _OUTPUT_BYTES + _TAP_BYTES * self.most_taps
        return _BLOCK_BYTES + _INPUT_BYTES * self.inputs + row * self.outputs

    def blocks(self) -> Iterator[Taps]:
        """Compute the taps of some outputs at a time.

        The check of `cancellation.asking` may cancel it between two blocks.
        """
        rows = max(BLOCK_TAPS // self.most_taps, 1)
        for first in range(0, self.outputs, rows):
            ask()
            yield self.sample(*self.arguments, np.arange(first, min(first + rows, self.outputs)))

    def table(self, *, gradient: bool) -> BandedMap:
        """Build the forward's table, or its adjoint."""
        forward = BandedMap.from_blocks(
            ((taps.index, taps.weight) for taps in self.blocks()), inputs=self.inputs
        )
        ask()
        return forward.adjoint() if gradient else forward


# None is an axis that is always the identity: it needs no table and has no limit.
Axes = tuple[Axis | None, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One operator of one framework.

    name          its member in the request's operator
    gradient      whether it runs from the forward's output to its input
    ranks         ranks its tensors may have
    axes          (attributes, call) -> one Axis per axis; raises InvalidFieldError
    output_shape  (attributes, input shape) -> output shape; None where sizes always come from the
                  descriptor
    fill          attributes -> value of forward elements that read nothing along some axis
    """

    name: str
    gradient: bool
    ranks: range
    axes: Callable[[Attributes, OperatorCall], Axes]
    output_shape: Callable[[Attributes, Shape], Shape] | None = None
    fill: Callable[[Attributes], float] | None = None


def check_count(
    attributes: Attributes,
    field: str,
    expected: int,
    *,
    noun: str = "axis",
    other: Collection[int] = (0,),
    wanted: str = "{}, or none",
) -> None:
    """Raise InvalidFieldError for a wrong number of an attribute's values.

    other   allowed numbers besides the expected one
    wanted  the numbers that would do; {} stands for the expected one
    """
    came = len(getattr(attributes, field))
    if came != expected and came not in other:
        raise InvalidFieldError(
            attributes.path(field),
            f"has {counted(came, 'value')} for {counted(expected, noun)}; give "
            f"{wanted.format(expected)}",
            came=came,
            expected=expected,
        )


def check_result(call: OperatorCall, expected: Mapping[int, int], *, by: str = "") -> None:
    """Raise InvalidFieldError unless axes of the result have the expected lengths.

    by  the attribute that determines them; empty for axes that keep their length
    """
    for axis, length in expected.items():
        came, source = call.result[axis], call.source[axis]
        if came == length:
            continue
        reason = f"{by} resizes this axis from {source} to {length}"
        if not by:
            reason = f"{call.source_sizes}[{axis}] is {source}, and this axis is not resampled"
        raise InvalidFieldError(
            f"{call.result_sizes}[{axis}]",
            f"is {came}; {reason}: give {length}",
            came=came,
            expected=length,
        )


def check_batch_and_channel(call: OperatorCall, *, spatial: range) -> None:
    """Raise InvalidFieldError unless every axis that is not spatial keeps its length."""
    check_result(call, {axis: size for axis, size in enumerate(call.source) if axis not in spatial})


def scaled_sizes(
    attributes: Attributes,
    field: str,
    sizes: Iterable[int],
    scales: Iterable[float],
    product: Callable[[int, float], float],
    *,
    text: Callable[[float], str] = shortest,
) -> tuple[int, ...]:
    """Return the whole part of each size times its scale.

    field    the attribute with the scales
    product  the arithmetic of the operator
    text     writes a scale

    Raises InvalidFieldError unless each is from 1 to 2**53: beyond,
    int64(float) and float(int64) no longer name the same number.
    """
    scaled: list[int] = []
    for i, (size, scale) in enumerate(zip(sizes, scales, strict=False)):
        length = product(size, scale)
        if not 1 <= length <= 2**53:
            raise InvalidFieldError(
                attributes.path(f"{field}[{i}]"),
                f"is {text(scale)}, which scales {size} elements to {length:g}; give a scale that "
                f"results in 1 to 2**53",
                came=text(scale),
                size=size,
            )
        scaled.append(int(length))
    return tuple(scaled)


def both(gradient: str, forward: str, *, ranks: range, **shared: Any) -> tuple[Dialect, Dialect]:
    """Return a gradient and its forward, which share all the rest."""
    return (
        Dialect(gradient, gradient=True, ranks=ranks, **shared),
        Dialect(forward, gradient=False, ranks=ranks, **shared),
    )
