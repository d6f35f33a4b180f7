"""Real servers for tests: in this process on a thread of their own, or as child processes."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import uvloop

from gradwire_server.backends import Backend
from gradwire_server.config.settings import Settings
from gradwire_server.server import Server
from support.processes import start_command


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
        self.server = self._listening.result(timeout=30)
        self.address = self.server.bound

    @property
    def http_address(self) -> str:
        """HOST:PORT of its HTTP port."""
        return self.server.instruments.address

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
        await server.stop(self._grace_s)

    def stop(self, *, grace_s: float = 0.0) -> None:
        """Stop gracefully and wait until it has stopped."""
        self._grace_s = grace_s
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


def in_threads(server: ServerThread) -> None:
    """Have a server compute nothing on its event loop."""
    server.server.service.inline.rate = 0.0


class ServerProcess:
    """A server as a child process, with NumPy, to be killed and started again on the same port."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        self._flags = flags
        self.port = port
        self.start()

    def start(self) -> None:
        self.process, self.address = start_command(
            "--address", f"127.0.0.1:{self.port}", *self._flags, stderr=subprocess.DEVNULL
        )
        if not self.address:
            self.kill()
            raise AssertionError("the server ended before it was ready")
        self.port = int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self._reap()

    def terminate(self) -> int:
        """Ask it to stop and return its exit status."""
        self.process.terminate()
        return self._reap()

    def _reap(self) -> int:
        status = self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


@contextmanager
def serving_process(*flags: str) -> Generator[ServerProcess]:
    server = ServerProcess(*flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
