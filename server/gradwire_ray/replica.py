"""One replica: an actor, and the server's process that it owns. Knows nothing of Ray."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from gradwire_ray.load import Load

_log = logging.getLogger("gradwire_ray")

_GREETING = b"gradwire-server listening on "
# Begins the line in which a server tells why it cannot serve.
REFUSAL = "gradwire-server cannot serve: "
# What a server may take to stop beyond its drain delay and grace period.
_STOP_S = 25.0
# A server tells its load twice a second; one that is silent for so long hangs.
_SILENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a replica tells of itself.

    address   HOST:PORT
    host      of the machine
    pid       of the server's process
    silent_s  since it last told its load; one that is well does so twice a second
    stopping  whether it was told to stop, and takes no call any more
    """

    address: str
    host: str
    pid: int
    load: Load
    silent_s: float = 0.0
    stopping: bool = False


class Replica:
    """Owns a server's process; Ray makes an actor of it, whose methods run in threads.

    flags   of gradwire-server, without the address
    on_end  called in another thread when the server has ended without being told to

    Raises RuntimeError, with what the server said, where it does not come to serve.
    """

    def __init__(
        self, flags: Sequence[str], *, host: str, threads: int, on_end: Callable[[], object]
    ) -> None:
        self._host = host
        self._on_end = on_end
        self._stopping = False
        self._lock = threading.Lock()
        self._load = Load()
        self._heard_at = time.monotonic()
        # The pipe at its standard input ends it should this process be killed.
        self._server = subprocess.Popen(  # noqa: S603 - our own server
            [
                *(sys.executable, "-m", "gradwire.cli.tethered", "gradwire_ray.hosted"),
                *("--address", f"[{host}]:0" if ":" in host else f"{host}:0"),
                *flags,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                "GRADWIRE_COMPUTE_THREADS": str(threads),
                "GRPC_VERBOSITY": "NONE",
                **os.environ,
            },
            start_new_session=True,
        )
        assert self._server.stdout is not None  # noqa: S101 - Popen was asked for a pipe
        self._address = self._wait_for_address(self._server.stdout)
        self._listening = threading.Thread(
            target=self._listen, args=(self._server.stdout,), daemon=True
        )
        self._listening.start()

    def report(self) -> Report:
        """Return how it is; RuntimeError where the server has said nothing for long."""
        silent_s = time.monotonic() - self._heard_at
        if silent_s > _SILENCE_S and not self._stopping:
            _log.error("server hangs pid=%d silent_s=%.0f", self._server.pid, silent_s)
            self._server.kill()
            raise RuntimeError(f"the server has said nothing for {silent_s:.0f} s")
        return Report(
            address=self._address,
            host=self._host,
            pid=self._server.pid,
            load=self._load,
            silent_s=silent_s,
            stopping=self._stopping,
        )

    def stop(self, drain_s: float) -> None:
        """Have the server finish its calls and end, at the latest after drain_s and a moment.

        Told again, it waits for the same end.
        """
        with self._lock:
            # A second signal would end the calls at once.
            if not self._stopping:
                self._stopping = True
                self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(drain_s + _STOP_S)
        except subprocess.TimeoutExpired:
            _log.warning("server is killed, it has not stopped pid=%d", self._server.pid)
            self._server.kill()
        self._listening.join()

    def _wait_for_address(self, said: IO[bytes]) -> str:
        why = "the log of its worker has its words, in the folder logs of Ray's session"
        for line in said:
            if line.startswith(_GREETING):
                return line.removeprefix(_GREETING).decode().strip()
            if line.startswith(REFUSAL.encode()):
                why = line.decode(errors="replace").removeprefix(REFUSAL).strip()
        status = self._reap()
        raise RuntimeError(f"on {self._host} the server ended with status {status}: {why}")

    def _listen(self, said: IO[bytes]) -> None:
        for line in said:
            if line.startswith(b"{"):
                self._load = Load.read(line)
                self._heard_at = time.monotonic()
        status = self._reap()
        if not self._stopping:
            _log.error("server ended pid=%d status=%d", self._server.pid, status)
            self._on_end()

    def _reap(self) -> int:
        """Wait for the end of the server, which is near, and return its exit status."""
        with self._server:
            return self._server.wait()
