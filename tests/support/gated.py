"""A server whose computations wait for the test."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from gradwire import v1
from gradwire_server.backends import NumpyCpu
from gradwire_server.plans import Plan
from support.raw_calls import PATIENCE_S, float32, identity_request, wait_until
from support.serving import ServerThread

# Too much to be computed on the event loop.
LABORIOUS = 1 << 17


class Gated(NumpyCpu):
    """Computes as NumPy does, plans with much work once `gate` is open.

    at_work  released by each that has come to the gate
    tensors  how many outer slices each of them had
    """

    def __init__(self, *, least_work: int = LABORIOUS, may_wait: bool = False) -> None:
        self.may_wait = may_wait
        self.gate = threading.Event()
        self.gate.set()
        self.at_work = threading.Semaphore(0)
        self.tensors = list[int]()
        self._least_work = least_work

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        if plan.work > self._least_work:
            self.at_work.release()
            assert self.gate.wait(PATIENCE_S)
            self.tensors.append(len(x))
        super().apply(plan, x, y)


@contextmanager
def gated(**settings: Any) -> Generator[tuple[ServerThread, threading.Event]]:
    """Run a server of one thread that computes; give it and its gate, which is closed."""
    backend = Gated()
    server = ServerThread(backend=backend, compute_threads=1, **{"max_queue_s": 60.0, **settings})
    server.start()
    backend.gate.clear()
    try:
        yield server, backend.gate
    finally:
        backend.gate.set()
        server.stop()


def laborious() -> v1.EvaluateRequest:
    """Ask for much work in one step with 4 bytes, for a result of 16."""
    request = identity_request(1, data=bytes(4))
    request.input.CopyFrom(float32(512, 512, strides=(0, 0)))
    request.output.CopyFrom(float32(2, 2))
    request.operator.dml_resample_grad.CopyFrom(request.operator.dml_resample)
    return request


def wait_for(server: ServerThread, *, computing: int, waiting: int) -> None:
    admission = server.server.service.admission
    wait_until(lambda: (admission.computing, admission.queue_depth) == (computing, waiting))
