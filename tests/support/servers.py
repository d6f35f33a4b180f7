"""Real servers for tests: in this process on threads of their own, or as child processes."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import uvloop
from numpy.typing import NDArray

from gradwire import v1
from gradwire_ray.listing import Listing
from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.config.settings import Settings
from gradwire_server.plans import Plan
from gradwire_server.server import Server
from support.processes import Command, running_command, start_command
from support.raw_calls import PATIENCE_S, ManyCall, RawClient, summed, wait_until


class ServerThread:
    """A server on a free loopback port, in a thread with its own event loop.

    It does not warm up unless it is told to: that takes longer than most tests. The backend is the
    same from the first call to the last.

    backend  what computes; None for what the settings choose
    address  HOST:PORT
    server   the Server, to look at from tests; use `call` to touch it
    """

    def __init__(self, *, backend: Backend | None = None, **settings: Any) -> None:
        self._settings = replace(
            Settings(),
            **{"address": "127.0.0.1:0", "warm_up": False, "wait_for_kernels": True, **settings},
        )
        self._backend = backend
        self._listening: Future[Server] = Future()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.listen()
        self.wait_until_serving()

    def listen(self) -> None:
        self._thread.start()
        self.server = self._listening.result(timeout=300)
        self.address = self.server.bound

    @property
    def http_address(self) -> str:
        """HOST:PORT of its HTTP port."""
        site = self.server.instruments.site
        return site.address if site else ""

    def wait_until_serving(self) -> None:
        self._started.result(timeout=300)

    def _run(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            server = Server(self._settings, backend=self._backend)
            await server.listen()
            self._listening.set_result(server)
            await server.get_ready()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test gets it
            (self._started if self._listening.done() else self._listening).set_exception(error)
            return
        self._started.set_result(None)
        await self._stop.wait()
        await server.turn_away(0)
        await server.stop(0.0)

    def stop(self) -> None:
        """Stop gracefully and wait until it has stopped."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


@contextmanager
def serving(**settings: Any) -> Generator[ServerThread]:
    server = ServerThread(**settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class ServerProcess:
    """A server as a child process, with NumPy, to be killed and started again on the same port."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        self._flags = flags
        self.port = port
        self.start()

    def start(self) -> None:
        flags = ("--address", f"127.0.0.1:{self.port}", *self._flags)
        self.process, self.address = start_command(*flags, stderr=subprocess.DEVNULL)
        if not self.address:
            self.kill()
            raise AssertionError("the server ended before it was ready")
        self.port = int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        """End it at once, as a crash would."""
        with self.process:
            self.process.kill()


@contextmanager
def serving_process(*flags: str) -> Generator[ServerProcess]:
    server = ServerProcess(*flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


class Gated(NumpyCpu):
    """Computes as NumPy does, plans with much work once `gate` is open.

    That is too much for the event loop.

    at_work  released by each that has come to the gate
    """

    def __init__(self, *, least_work: int = 1 << 17, may_wait: bool = False) -> None:
        self.may_wait = may_wait
        self.gate = threading.Event()
        self.gate.set()
        self.at_work = threading.Semaphore(0)
        self._least_work = least_work

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        if plan.work > self._least_work:
            self.at_work.release()
            assert self.gate.wait(PATIENCE_S)
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
    return summed(512, rows=2, columns=2)


def wait_for(server: ServerThread, *, computing: int, waiting: int) -> None:
    admission = server.server.service.admission
    wait_until(lambda: (admission.computing, admission.queue_depth) == (computing, waiting))


class List(Listing):
    """A list of replicas that a test changes."""

    def __init__(self, *replicas: str, **settings: Any) -> None:
        self.replicas = list(replicas)
        given, host = Settings(**settings), "127.0.0.1"
        super().__init__("some", host=host, port=0, settings=given, addresses=lambda: self.replicas)


def same_bytes(result: NDArray[Any], expected: NDArray[Any]) -> None:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tobytes() == expected.tobytes()


@contextmanager
def served(**settings: Any) -> Generator[tuple[ServerThread, RawClient]]:
    """Run a server with these settings in a thread, and connect to it."""
    with serving(**settings) as server, RawClient(server.address) as client:
        yield server, client


@contextmanager
def served_many(**settings: Any) -> Generator[tuple[ServerThread, RawClient, ManyCall]]:
    with served(**settings) as (server, client), ManyCall(client) as call:
        yield server, client, call


@contextmanager
def commanded(*flags: str, log: Path, **options: Any) -> Generator[tuple[Command, RawClient]]:
    """Run the command as `running_command` does, and connect to it."""
    with running_command(*flags, log=log, **options) as server, RawClient(server.address) as client:
        yield server, client


def wait_idle(server: ServerThread) -> None:
    """Wait until a server holds no stream and no memory for any call."""
    admission = server.server.service.admission
    wait_until(lambda: (admission.streams, admission.memory_bytes) == (0, 0))


def lasting_client(server: ServerThread) -> Generator[RawClient]:
    """Connect to a server, as a fixture; in the end it serves as before, and is idle."""
    with RawClient(server.address) as client:
        yield client
        client.check_alive()
    wait_idle(server)
