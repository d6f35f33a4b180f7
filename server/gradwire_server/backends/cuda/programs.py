"""What a plan becomes: launches of kernels, on buffers that whoever runs them provides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

# Every buffer begins at a multiple of so many bytes: vectors are read whole.
ALIGNMENT = 16

Place = Literal["x", "y", "scratch", "table"]
Dim3 = tuple[int, int, int]


class Kernel(NamedTuple):
    """A kernel, by the file that has it and its name expression: what NVRTC is asked for."""

    source: str
    expression: str


class Buffer(NamedTuple):
    """A pointer argument: the tensor read, the one written, or one of a program's own buffers.

    number  of "scratch" and "table": which one
    """

    place: Place
    number: int = 0


Argument = Buffer | np.generic


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. Launches of a program follow each other on one stream.

    shared_bytes  dynamic shared memory
    arguments     in the kernel's order; numbers have the width of its parameters
    """

    kernel: Kernel
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0

    def resolved(self, addresses: Mapping[Buffer, int]) -> tuple[np.generic, ...]:
        """Return the arguments as numbers, with device addresses in place of buffers."""
        return tuple(
            np.uint64(addresses[one]) if isinstance(one, Buffer) else one for one in self.arguments
        )


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """All launches that turn x into y, which they write whole. Its arrays must not be written to.

    tables   arrays that launches read, to be kept on the device; Buffer("table", i) is the i-th
    scratch  bytes of each buffer for results between launches, whose contents mean nothing before
    """

    launches: tuple[Launch, ...]
    tables: tuple[npt.NDArray[Any], ...]
    scratch: tuple[int, ...]

    @property
    def kernels(self) -> frozenset[Kernel]:
        """The kernels that must be there."""
        return frozenset(launch.kernel for launch in self.launches)


def packed(sizes: Sequence[int], *, alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Return offsets at which buffers of these sizes fit into one, and its size, all in bytes."""
    offsets, end = list[int](), 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // alignment) * alignment
    return offsets, end
