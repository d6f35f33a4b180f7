"""Plans: the passes that an operator takes, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol


from gradwire_server.plans.banded_map import BandedMap


class Hash(Protocol):
    """What hashlib's objects have."""

    def update(self, data: bytes, /) -> None:
        """Take more bytes."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One map along one axis."""

    axis: int
    map: BandedMap


@dataclass(frozen=True)
class Plan:
    """Passes in the order in which they are applied; axes without one are left alone.

    fill  value of an element whose band is empty on at least one axis
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    passes: tuple[Pass, ...]
    fill: float = 0.0

    @classmethod
    def build(
        cls, maps: Sequence[BandedMap | None], input_shape: tuple[int, ...], *, fill: float = 0.0
    ) -> Plan:
        """Plan one map per axis, in ascending order, leaving identities out."""
        passes = tuple(
            Pass(axis, one) for axis, one in enumerate(maps) if one is not None and not one.is_identity
        )
        shape = list(input_shape)
        for one in passes:
            shape[one.axis] = one.map.outputs
        return cls(input_shape, tuple(shape), passes, fill)

    def adjoint(self) -> Plan:
        """Plan the gradient: the adjoint of every map, again in ascending order."""
        passes = tuple(Pass(one.axis, one.map.adjoint()) for one in self.passes)
        return Plan(self.output_shape, self.input_shape, passes)

    def permuted(self, order: Sequence[int]) -> Plan:
        """Return the plan for a tensor whose stored axis s is logical axis order[s]."""
        place = {logical: stored for stored, logical in enumerate(order)}
        return Plan(
            tuple(self.input_shape[axis] for axis in order),
            tuple(self.output_shape[axis] for axis in order),
            tuple(replace(one, axis=place[one.axis]) for one in self.passes),
            self.fill,
        )

    def _shapes(self) -> list[tuple[int, ...]]:
        """Shape after each pass."""
        shapes, shape = [], list(self.input_shape)
        for one in self.passes:
            shape[one.axis] = one.map.outputs
            shapes.append(tuple(shape))
        return shapes

    @property
    def work(self) -> int:
        """Multiplications of all passes."""
        return sum(
            math.prod(shape) // one.map.outputs * one.map.nnz
            for one, shape in zip(self.passes, self._shapes(), strict=True)
        )

    @property
    def largest_intermediate(self) -> int:
        """Elements of the largest result of any pass."""
        return max((math.prod(shape) for shape in self._shapes()), default=0)

    @property
    def table_entries(self) -> int:
        """Entries of all tables."""
        return sum(one.map.nnz + one.map.outputs + one.map.inputs for one in self.passes)

    def digest_update(self, digest: Hash) -> None:
        """Feed shapes, fill and tables to a hash, little-endian."""
        head = (self.input_shape, self.output_shape, [one.axis for one in self.passes], self.fill)
        digest.update(repr(head).encode())
        for one in self.passes:
            for array in (one.map.start, one.map.offset, one.map.weight):
                digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


