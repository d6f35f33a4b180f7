"""Types common to all dialects: calls and lazily built axes.

Calls are in forward terms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradwire_server.errors import InvalidFieldError
from gradwire_server.plans.banded_map import BandedMap
from gradwire_server.plans.cancellation import ask
from gradwire_server.plans.sampling import ComputedTaps, Taps

Shape = tuple[int, ...]

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

    operator  the member of the request's operator, which begins every attribute's path
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

    def attribute(self, field: str) -> str:
        """Path of an attribute in the request."""
        return f"operator.{self.operator}.{field}"

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
    sample           computes the taps of all outputs; called once the limits are known to hold
    arguments        arguments of sample; equal axes share one table
    in_float32       whether coordinates are float32 numbers, which bounds the lengths
    padded           length of the inputs with padding, if there is any
    window           elements weighed for the sum of an output's weights, besides its taps
    effort           cost of one tap relative to one of a few sums and products
    """

    inputs: int
    outputs: int
    most_taps: int
    sample: Callable[..., Taps | ComputedTaps]
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

    def build(self) -> BandedMap:
        """Build the forward's table; the check of `cancellation.asking` may cancel it."""
        ask()
        return self.map_of(self.sample(*self.arguments))

    def table(self, *, gradient: bool) -> BandedMap:
        """Build the forward's table, or its adjoint."""
        forward = self.build()
        if not gradient:
            return forward
        ask()
        return forward.adjoint()

    def map_of(self, taps: Taps | ComputedTaps) -> BandedMap:
        """Build the table from the taps that `sample` returned."""
        return BandedMap.from_blocks(taps.blocks(), inputs=self.inputs)


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
    by_compute    whether tables for float64 tensors differ from those for other types
    fill          attributes -> value of forward elements that read nothing along some axis

    The attributes are the operator's own, already validated one by one. Each dialect declares the
    fields it reads as a Protocol, which a table of all dialects cannot express.
    """

    name: str
    gradient: bool
    ranks: range
    axes: Callable[[Any, OperatorCall], Axes]
    output_shape: Callable[[Any, Shape], Shape] | None = None
    by_compute: bool = False
    fill: Callable[[Any], float] | None = None


def check_batch_and_channel(call: OperatorCall, *, spatial: range) -> None:
    """Raise InvalidFieldError unless every axis that is not spatial keeps its length."""
    for axis, (kept, came) in enumerate(zip(call.source, call.result, strict=True)):
        if axis not in spatial and kept != came:
            part = "channel" if axis else "batch"
            raise InvalidFieldError(
                f"{call.result_sizes}[{axis}]",
                f"is {came}, {call.source_sizes}[{axis}] is {kept}; the {part} axis is not "
                f"resampled: give both the same length",
                came=came,
                expected=kept,
            )
