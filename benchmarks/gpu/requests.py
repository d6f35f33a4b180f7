"""Servers and requests of the GPU benchmark; needs SDK and server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from benchmarks.compute.cases import Array
from benchmarks.compute.native import UnavailableError
from benchmarks.servers import OURS, started
from gradwire import Client, ops
from gradwire_server.backends import Backend
from support.servers import serving

_OPERATOR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
# Timeout of one call: results of 64 MiB over loopback take some tenths of a second.
_TIMEOUT_S = 60.0

Evaluate = Callable[[Array, Array], object]


@contextmanager
def process(backend: str) -> Generator[Evaluate]:
    """Run a server in a process of its own.

    Its kernels are compiled before. Raises UnavailableError, with its words, if it cannot run.
    """
    command = [sys.executable, "-m", "gradwire_server", "--backend", backend, "--compile-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"{backend}: {' '.join(done.stderr.split())}")
    threads = str(len(os.sched_getaffinity(0)))
    flags = ("--backend", backend, "--compute-threads", threads)
    with started(*OURS, *flags) as server, Client(server.address, timeout_s=_TIMEOUT_S) as client:
        yield _evaluate(client)


@contextmanager
def thread(backend: Backend) -> Generator[Evaluate]:
    """Run a server with this backend in a thread of this process."""
    with serving(backend=backend) as server, Client(server.address) as client:
        yield _evaluate(client)


def _evaluate(client: Client) -> Evaluate:
    def evaluate(x: Array, y: Array) -> object:
        return client.evaluate(_OPERATOR, x, output_shape=y.shape, out=y)

    return evaluate
