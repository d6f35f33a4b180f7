"""Configuration of each worker, with its share of the machine's limits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Self

from gradwire_server.config.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration sent to a worker on its standard input.

    number   of the worker, from 0
    parent   pid of the supervisor
    cells    file descriptor of the memory for its metrics
    devices  the module of backends.DEVICES
    """

    number: int
    parent: int
    settings: Settings
    cells: int
    devices: str

    def dump(self) -> bytes:
        """Encode it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, dumped: bytes) -> Self:
        """Decode it."""
        told = json.loads(dumped)
        settings = Settings(**told.pop("settings"))
        return cls(settings=settings, **told)


def share(settings: Settings, address: str, *, devices: int = 0) -> Settings:
    """Return the settings of one worker.

    Limits of the machine are divided among all workers.

    devices  number of GPUs; limits of a GPU are divided among its workers
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
