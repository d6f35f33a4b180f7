"""Warm-up leaves no trace, and first calls import no module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import environment, run_command, running_command
from support.scraping import scrape
from support.servers import serving

# Tells what it has imported since it serves, once all that came was answered.
SERVING = """
import asyncio, sys
from gradwire_server.server import Server
from gradwire_server.config.settings import Settings

async def main():
    settings = Settings(address="127.0.0.1:0", wait_for_kernels=True, log_level="error")
    server = Server(settings)
    await server.start()
    before = set(sys.modules)
    print(server.bound, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(*sorted(set(sys.modules) - before))
    await server.stop(0)

asyncio.run(main())
"""

CALLING = """
import sys
import numpy as np
from gradwire import Client, Item, ops

before = set(sys.modules)
copy = ops.DmlResample(interpolation_mode="linear")
arrays = [np.ones((4, 4), np.float32), np.ones((512, 512), np.float32)]
with Client(sys.argv[1]) as client:
    for each in arrays:
        client.evaluate(copy, each, output_shape=each.shape)
    for _ in client.evaluate_many(Item(copy, each, each.shape) for each in arrays):
        pass
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_calls_of_a_server_and_a_client_import_nothing() -> None:
    with subprocess.Popen(  # noqa: S603 - the script above
        [sys.executable, "-c", SERVING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(None),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        calls = run_command(process.stdout.readline().strip(), program=("-c", CALLING))
        process.stdin.close()
        assert (process.stdout.read().split(), calls.stdout.split()) == ([], [])
    assert calls.returncode == 0, calls.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_no_trace_of_it_is_left(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "own"  # the path of a socket has at most 107 bytes
    folder.mkdir()
    flags = ("--http-port", "127.0.0.1:0", "--workers", str(workers))
    with running_command(*flags, log=tmp_path / "log", env={"TMPDIR": str(folder)}) as command:
        address = command.http_address
        told = scrape(address)
        command.wait_for_log(" serving ", times=workers)
        assert "call" not in command.log
        assert list(folder.iterdir()) == []
    for counted in ("gradwire_request", "gradwire_phase", "gradwire_plan_cache"):
        assert [name for name in told.kinds if name.startswith(counted)]
        values = {each: told.value(each) for each, _ in told.samples if each.startswith(counted)}
        assert not any(values.values()), values


def test_nothing_of_it_is_kept() -> None:
    with serving(warm_up=True) as server:
        service = server.server.service
        assert service.preparer.lookups == (0, 0)
        assert service.preparer.table_lookups == (0, 0)
        assert (service.admission.memory_bytes, service.admission.streams) == (0, 0)
        assert service.active.none_left.is_set()
        assert not any(service.active.in_phase.values())
