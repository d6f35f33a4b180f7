"""A replica: the process of a server, and its owner.

Imports no Ray.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradwire._wire.environment import GRPC_VARIABLES

_log = logging.getLogger("gradwire_ray")

# Time to stop that a server gets beyond its drain delay and grace period.
STOP_S = 25.0
# A server writes its load twice a second; a server silent for this long hangs.
_SILENCE_S = 60.0
# Pause before another start of a server that failed to start.
_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """State of a replica, and its load in the last half second.

    address   HOST:PORT
    host      of the machine
    pid       of the server's process
    waiting   evaluations that waited for a thread, on average
    busy      share of the computing threads in use, 0 to 1
    loop      share of the time in which the event loop was at work, 0 to 1
    refused   evaluations refused for want of room, since the server started
    streams   open streams at the end
    stopping  whether the server finishes its calls, to end
    failure   why the server has ended; empty while it serves
    """

    address: str = ""
    host: str = ""
    pid: int = 0
    waiting: float = 0.0
    busy: float = 0.0
    loop: float = 0.0
    refused: int = 0
    streams: int = 0
    stopping: bool = False
    failure: str = ""


class Replica:
    """Owner of a server's process; Ray makes an actor of it.

    flags   of gradwire-server, without the address
    send    called in another thread with reports: twice a second while the server serves, and
            once it has ended without being told to
    on_end  called after that; after a pause, if the server never served
    """

    def __init__(
        self,
        flags: Sequence[str],
        *,
        host: str,
        threads: int,
        send: Callable[[Report], object],
        on_end: Callable[[], object],
    ) -> None:
        self._send = send
        self._on_end = on_end
        self._stopping = threading.Event()
        self._lock = threading.Lock()
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
                **GRPC_VARIABLES,
                "GRPC_ENABLE_FORK_SUPPORT": "0",  # as gradwire-server sets it
                **os.environ,
            },
            start_new_session=True,
        )
        self._report = Report(host=host, pid=self._server.pid)
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def stop(self, drain_s: float) -> None:
        """Have the server finish its calls and end.

        A server that takes longer than drain_s + STOP_S is killed. A second call waits for the same
        end.
        """
        with self._lock:
            # A second signal would end the calls at once.
            if not self._stopping.is_set():
                self._stopping.set()
                self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(drain_s + STOP_S)
        except subprocess.TimeoutExpired:
            _log.warning("server is killed, it has not stopped pid=%d", self._server.pid)
            self._server.kill()
        self._listening.join()

    def _listen(self) -> None:
        """Send reports until the server has ended; kill it if it hangs."""
        assert self._server.stdout is not None  # noqa: S101 - Popen was asked for a pipe
        output = self._server.stdout.fileno()
        # Compilation may take minutes before the first line.
        while select.select([output], (), (), _SILENCE_S if self._report.address else None)[0]:
            # Lines are shorter than what a pipe writes at once, so that none comes in parts.
            if not (text := os.read(output, 1 << 16)):
                break
            for line in text.decode(errors="replace").splitlines():
                self._read(line)
        else:
            _log.error("server hangs pid=%d silent_s=%.0f", self._server.pid, _SILENCE_S)
            self._server.kill()
        with self._server:
            status = self._server.wait()
        if self._stopping.is_set():
            return
        _log.error("server ended pid=%d status=%d", self._server.pid, status)
        known = self._report.failure or "the log of its worker, in Ray's session, tells more"
        why = f"on {self._report.host} the server ended with status {status}: {known}"
        self._send(replace(self._report, failure=why))
        # A server that never served would most likely fail again.
        if self._report.address or not self._stopping.wait(_PAUSE_S):
            self._on_end()

    def _read(self, line: str) -> None:
        """Take a report's fields from a line of JSON; ignore others."""
        if line.startswith("{"):
            stopping = self._stopping.is_set()
            self._report = replace(self._report, stopping=stopping, **json.loads(line))
            if not self._report.failure:
                self._send(self._report)
