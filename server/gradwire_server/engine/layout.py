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

    input  descriptor of the input
    order  logical axis of each stored axis
    wire   elements on the wire along each stored axis of the input: 1 where broadcast
    held   whether the whole input is held in memory, because its axis order differs
    """

    input: TensorSpec
    order: tuple[int, ...]
    wire: tuple[int, ...]
    held: bool

    def whole_input(self, data: NDArray[np.uint8]) -> NDArray[np.generic]:
        """View the input's wire bytes as an array.

        The array is in stored axis order, with broadcast axes expanded.
        """
        spec, order = self.input, self.order
        # Stored axes in the wire's own order; where others stand that are 1 long does not matter.
        own = sorted(range(len(order)), key=lambda stored: -spec.strides[order[stored]])
        stored = data.view(spec.dtype).reshape([self.wire[axis] for axis in own])
        return np.broadcast_to(stored.transpose(np.argsort(own)), [spec.sizes[a] for a in order])


def lay_out(source: TensorSpec, result: TensorSpec) -> Layout:
    """Find the stored axis order of an evaluation from source to result."""
    broadcast_last = [(real, axis) for real in source.chain for axis in source.broadcast]
    try:
        order = _merge(len(source.sizes), [result.chain, source.chain, *broadcast_last])
        held = False
    except CycleError:
        order, held = _merge(len(source.sizes), [result.chain]), True
    wire = tuple(1 if axis in source.broadcast else source.sizes[axis] for axis in order)
    return Layout(source, order, wire, held)


def _merge(axes: int, chains: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Order the axes so that every chain ascends.

    Lower axes come first. Raises CycleError if chains contradict.
    """
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(axes), ()))
    for chain in chains:
        for before, after in pairwise(chain):
            sorter.add(after, before)
    sorter.prepare()
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
        rank, elements = len(tensor.sizes), tensor.elements
        self._check("max_rank", rank, f"{name} has {counted(rank, 'axis')}")
        self._check("max_elements", elements, f"{name} has {counted(elements, 'element')}")

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan whose intermediate results or work are too large."""
        most, work = plan.largest_intermediate, plan.work
        self._check("max_elements", most, f"an intermediate result has {most} elements")
        self._check("max_work", work, f"the request takes {work} multiplications")

    def _check(self, limit: str, amount: int, came: str) -> None:
        allowed = getattr(self, limit)
        if amount > allowed:
            raise exceeded(came, limit, allowed)


def exceeded(
    came: str, limit: str, allowed: int, kind: type[RequestLimitError] = RequestLimitError
) -> RequestLimitError:
    """Return the error for an exceeded limit.

    It names the setting to raise.
    """
    return kind(beyond(came, limit, allowed), limit=limit, allowed=allowed)
