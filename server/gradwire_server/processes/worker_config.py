"""What each of several workers is told: its settings, with its share of what bounds the machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Self

from gradwire_server import backends
from gradwire_server.config.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker is told when it starts, on its standard input.

    number   of the worker, from 0
    parent   process that watches it
    cores    it may run on; none for any
    cells    file descriptor of the memory for its metrics, if they are wanted
    devices  the module of backends.DEVICES
    """

    number: int
    parent: int
    cores: tuple[int, ...]
    settings: Settings
    cells: int | None = None
    devices: str = backends.DEVICES

    def dump(self) -> bytes:
        """Encode it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, dumped: bytes) -> Self:
        """Decode it."""
        told = json.loads(dumped)
        return cls(
            told["number"],
            told["parent"],
            tuple(told["cores"]),
            Settings(**told["settings"]),
            told["cells"],
            told["devices"],
        )


def share(settings: Settings, address: str, *, devices: int = 0) -> Settings:
    """Return the settings of one worker: what bounds a machine is divided among all.

    devices  GPUs of the server; what bounds one is divided among its workers
    """
    of_a_device = settings.workers // devices if devices else 1
    return replace(
        settings,
        address=address,
        compute_threads=settings.threads,
        max_memory_bytes=max(1, settings.max_memory_bytes // settings.workers),
        max_streams=max(1, settings.max_streams // settings.workers),
        max_queue=max(1, settings.max_queue // settings.workers),
        cuda_memory_bytes=max(1, settings.cuda_memory_bytes // of_a_device),
    )


def divide(cores: list[int], workers: int) -> list[tuple[int, ...]]:
    """Divide cores among workers, neighbors together; workers share where cores are too few."""
    count = len(cores)
    if count < workers:
        return [(cores[number % count],) for number in range(workers)]
    ends = [number * count // workers for number in range(workers + 1)]
    return [tuple(cores[first:end]) for first, end in pairwise(ends)]
