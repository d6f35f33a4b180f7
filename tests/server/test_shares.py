"""What bounds a machine is divided among workers, and each is told its share."""

from __future__ import annotations

import pytest

from gradwire_server.config.settings import Settings
from gradwire_server.processes.gpus import visible
from gradwire_server.processes.worker_config import WorkerConfig, share


def test_a_share_is_never_nothing() -> None:
    settings = Settings(
        workers=5, max_streams=3, max_queue=4, max_memory_bytes=2, compute_threads=7
    )
    shared = share(settings, "127.0.0.1:7")
    assert (shared.max_streams, shared.max_queue) == (1, 1)
    assert (shared.max_memory_bytes, shared.threads) == (1, 7)


def test_workers_divide_what_may_wait() -> None:
    assert share(Settings(workers=4, max_queue=1000), "127.0.0.1:7").max_queue == 250


@pytest.mark.parametrize(("workers", "devices", "share_of"), [(2, 2, 1), (6, 2, 3), (4, 0, 1)])
def test_workers_of_a_device_divide_its_memory(workers: int, devices: int, share_of: int) -> None:
    settings = Settings(workers=workers, cuda_memory_bytes=12)
    assert share(settings, "127.0.0.1:7", devices=devices).cuda_memory_bytes == 12 // share_of


@pytest.mark.parametrize(
    ("outer", "named"), [(None, "2"), ("3,0,7", "7"), ("GPU-a, GPU-b, GPU-c", "GPU-c")]
)
def test_numbers_of_devices_are_those_among_the_visible_ones(outer: str | None, named: str) -> None:
    assert visible(2, outer) == named


def test_a_job_arrives_as_it_was_sent() -> None:
    job = WorkerConfig(2, 77, Settings(workers=4, tls_certificate="c", tls_key="k", grace_s=0.5))
    assert WorkerConfig.load(job.dump()) == job
