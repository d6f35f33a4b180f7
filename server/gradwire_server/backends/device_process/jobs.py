"""What the process of a device is told when it starts, and what workers are told of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

# Of the memory in which the process of a device tells what it takes.
BOARD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker finds a device.

    socket  name of the socket at which its process listens
    number  of the device among those that CUDA_VISIBLE_DEVICES leaves
    device  its name, as people know it
    """

    socket: str
    number: int
    device: str


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """What the process of a device is told, on its standard input.

    number        of the device, as in its address
    parent        process that watches it
    listener      file descriptor of the socket at which workers come
    board         file descriptor of the memory in which it tells what it takes, float64[1]
    memory_bytes  most of the device's memory that it takes
    cache_dir     folder in which compiled kernels are kept; empty for the default one
    find          what finds the device, as MODULE:FUNCTION
    """

    number: int
    parent: int
    listener: int
    board: int
    memory_bytes: int
    cache_dir: str
    warm_up: bool
    log_format: str
    log_level: str
    find: str

    def dump(self) -> bytes:
        """Encode it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, dumped: bytes) -> Self:
        """Decode it."""
        return cls(**json.loads(dumped))
