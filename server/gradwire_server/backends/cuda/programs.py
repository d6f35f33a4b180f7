"""Programs: launches of kernels, their tables and their scratch memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

# Buffers begin at multiples of so many bytes: kernels read whole vectors.
ALIGNMENT = 16

Place = Literal["x", "y", "scratch", "table"]
Dim3 = tuple[int, int, int]


class Kernel(NamedTuple):
    """A kernel: its source file and the name expression for NVRTC."""

    source: str
    expression: str


class Buffer(NamedTuple):
    """A pointer argument: the tensor x or y, or a numbered table or scratch buffer.

    offset  bytes from its beginning, a multiple of ALIGNMENT
    """

    place: Place
    number: int = 0
    offset: int = 0

    @property
    def whole(self) -> Buffer:
        """The buffer from its beginning."""
        return self._replace(offset=0)


Argument = Buffer | np.generic


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel. Launches of a program run in order, on one stream.

    arguments     in the kernel's order; numbers have the width of its parameters
    shared_bytes  dynamic shared memory
    """

    kernel: Kernel
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0

    def resolved(self, addresses: Mapping[Buffer, int]) -> tuple[np.generic, ...]:
        """Return the arguments with device addresses in place of buffers.

        addresses  of whole buffers
        """
        return tuple(
            np.uint64(addresses[one.whole] + one.offset) if isinstance(one, Buffer) else one
            for one in self.arguments
        )

    def shifted(self, **offsets: int) -> Launch:
        """Return the launch on later parts of buffers, by byte offset of each place."""
        arguments = (
            one._replace(offset=offsets[one.place])
            if isinstance(one, Buffer) and one.place in offsets
            else one
            for one in self.arguments
        )
        return replace(self, arguments=tuple(arguments))


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """Launches that compute all of y from x. Its arrays must not be modified.

    tables   constant arrays on the device; Buffer("table", i) is the i-th
    scratch  bytes of each buffer for results between launches, uninitialized
    """

    launches: tuple[Launch, ...]
    tables: tuple[npt.NDArray[Any], ...]
    scratch: tuple[int, ...]

    @property
    def kernels(self) -> frozenset[Kernel]:
        """Kernels of all launches."""
        return frozenset(launch.kernel for launch in self.launches)


def packed(sizes: Sequence[int], *, alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Return byte offsets of buffers of these sizes within one, and its size."""
    offsets, end = list[int](), 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // alignment) * alignment
    return offsets, end
