"""Tensor layouts: the axis order shared by input and output.

Stored axes are the axes in the order in which the evaluation walks both tensors, slowest first. In
this order the output's bytes ascend. If the input's bytes ascend too, the tensor can be streamed;
otherwise the whole input is held in memory and read in this order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradwire_server.dialects import DEFAULT_MAX_FLOAT32_AXIS, DEFAULT_MAX_TABLE_ENTRIES
from gradwire_server.errors import RequestLimitError, beyond, counted
from gradwire_server.plans import Plan

# Length that replaces 0 while an operator is lowered.
FILLED = 2


@dataclass(frozen=True)
class TensorSpec:
    """A validated tensor descriptor.

    dtype    storage type: float32, float16, bfloat16 or float64
    sizes    elements along each logical axis; a tensor with a 0 among them is empty
    strides  elements between neighbors along each axis, 0 where broadcast; as many as sizes
    """

    dtype: np.dtype[np.generic]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def packed(cls, dtype: np.dtype[np.generic], sizes: tuple[int, ...]) -> TensorSpec:
        """Describe a row-major tensor without gaps."""
        longer = [max(1, size) for size in sizes]
        strides = tuple(math.prod(longer[axis + 1 :]) for axis in range(len(sizes)))
        return cls(dtype, sizes, strides)

    @property
    def filled(self) -> TensorSpec:
        """The tensor, with lengths of 0 replaced by FILLED.

        Its operator can then be lowered.
        """
        if self.elements:
            return self
        return TensorSpec.packed(self.dtype, tuple(size or FILLED for size in self.sizes))

    @cached_property
    def chain(self) -> tuple[int, ...]:
        """Logical axes that occupy addresses, by descending stride: the wire's axis order."""
        occupied = [a for a, size in enumerate(self.sizes) if size > 1 and self.strides[a] > 0]
        return tuple(sorted(occupied, key=lambda axis: -self.strides[axis]))

    @cached_property
    def broadcast(self) -> frozenset[int]:
        """Logical axes longer than 1 of which the wire carries one element."""
        return frozenset(a for a, n in enumerate(self.sizes) if n > 1 and self.strides[a] == 0)

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """The descriptor as plain values."""
        return self.dtype.name, self.sizes, self.strides

    @cached_property
    def elements(self) -> int:
        """Logical elements."""
        return math.prod(self.sizes)

    @cached_property
    def wire_bytes(self) -> int:
        """Bytes on the wire."""
        if not self.elements:
            return 0
        return math.prod(self.sizes[axis] for axis in self.chain) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """How one evaluation walks its two tensors.

    order  logical axis of each stored axis
    wire   elements on the wire along each stored axis of the input: 1 where broadcast
    held   whether the whole input is held in memory, because its axis order differs
    """

    input: TensorSpec
    output: TensorSpec
    order: tuple[int, ...]
    wire: tuple[int, ...]
    held: bool

    def whole_input(self, data: NDArray[np.uint8]) -> NDArray[np.generic]:
        """View the input's wire bytes as an array.

        The array is in stored axis order, with broadcast axes expanded.
        """
        spec = self.input
        rest = [axis for axis in range(len(spec.sizes)) if axis not in spec.chain]
        own_order = (*spec.chain, *rest)
        shape = [spec.sizes[axis] for axis in spec.chain] + [1] * len(rest)
        own = data.view(spec.dtype).reshape(shape)
        stored = own.transpose([own_order.index(axis) for axis in self.order])
        return np.broadcast_to(stored, [spec.sizes[axis] for axis in self.order])


def lay_out(source: TensorSpec, result: TensorSpec) -> Layout:
    """Find the stored axis order of an evaluation from source to result."""
    chains = [result.chain, source.chain]
    broadcast_last = [(real, axis) for real in source.chain for axis in source.broadcast]
    order = _merge(len(source.sizes), [*chains, *broadcast_last])
    held = order is None
    if order is None:
        order = _merge(len(source.sizes), [result.chain])
    if order is None:
        raise AssertionError("one chain never contradicts itself")
    wire = tuple(1 if axis in source.broadcast else source.sizes[axis] for axis in order)
    return Layout(source, result, order, wire, held)


def _merge(axes: int, chains: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Order the axes so that every chain ascends.

    Lower axes come first. None if chains contradict.
    """
    if all(before < after for chain in chains for before, after in pairwise(chain)):
        return tuple(range(axes))
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(axes), ()))
    for chain in chains:
        for before, after in pairwise(chain):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError:
        return None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        axis = ready.pop(0)
        order.append(axis)
        sorter.done(axis)
    return tuple(order)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one evaluation.

    The settings of the same names hold the defaults.

    max_rank                  axes of a tensor
    max_elements              logical elements of input, output and any intermediate result
    max_table_entries         entries of all weight tables
    max_float32_axis          elements of an axis whose coordinates are computed in float32
    max_work                  multiplications
    max_request_memory_bytes  bytes of memory at once
    slab_bytes                bytes one step should work on
    """

    max_rank: int = 8
    max_elements: int = 1 << 36
    max_table_entries: int = DEFAULT_MAX_TABLE_ENTRIES
    max_float32_axis: int = DEFAULT_MAX_FLOAT32_AXIS
    max_work: int = 1 << 40
    max_request_memory_bytes: int = 1 << 30
    slab_bytes: int = 3 << 20

    def check_tensor(self, name: str, tensor: TensorSpec) -> None:
        """Refuse a tensor with too many axes or elements.

        name is "input" or "output".
        """
        if len(tensor.sizes) > self.max_rank:
            raise exceeded(
                f"{name} has {counted(len(tensor.sizes), 'axis')}", "max_rank", self.max_rank
            )
        if tensor.elements > self.max_elements:
            raise exceeded(
                f"{name} has {counted(tensor.elements, 'element')}",
                "max_elements",
                self.max_elements,
            )

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan whose intermediate results or work are too large."""
        if plan.largest_intermediate > self.max_elements:
            came = f"an intermediate result has {plan.largest_intermediate} elements"
            raise exceeded(came, "max_elements", self.max_elements)
        if plan.work > self.max_work:
            raise exceeded(
                f"the request takes {plan.work} multiplications", "max_work", self.max_work
            )


def exceeded(
    came: str, limit: str, allowed: int, kind: type[RequestLimitError] = RequestLimitError
) -> RequestLimitError:
    """Return the error for an exceeded limit.

    It names the setting to raise.
    """
    return kind(beyond(came, limit, allowed), limit=limit, allowed=allowed)
