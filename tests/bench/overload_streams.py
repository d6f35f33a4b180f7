"""Two callers of overload.py who stream 16 MiB back to back, until they are ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from bench.overload_kinds import BILINEAR
from gradwire import Client

_STREAMED = (1, 4, 1024, 1024)


@contextmanager
def streaming(address: str) -> Generator[list[int]]:
    """Have two callers stream meanwhile, from a process of their own; give their finished calls.

    address  of the server; nobody streams where it is empty
    """
    if not address:
        yield []
        return
    command = [sys.executable, "-m", "bench.overload_streams", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
    counts: list[int] = []
    try:
        yield counts
    finally:
        process.terminate()
        assert process.stdout is not None
        counts.append(sum(1 for _ in process.stdout))
        process.wait()


def _stream(address: str) -> None:
    """Stream back to back until ended, and print a line for every call."""
    array = np.ones(_STREAMED, np.float32)
    shape = (*_STREAMED[:2], _STREAMED[2] // 2, _STREAMED[3] // 2)
    with Client(address) as client:

        def call() -> None:
            while True:
                client.evaluate(BILINEAR, array, output_shape=shape)
                print(flush=True)  # noqa: T201 - what the parent counts

        threads = [threading.Thread(target=call, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _stream(sys.argv[1])
