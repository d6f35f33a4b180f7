"""Each worker's share of the machine's limits."""

from __future__ import annotations

from dataclasses import replace

from gradwire_server.config.settings import Settings


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
