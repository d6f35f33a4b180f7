"""Machines that are network namespaces of this one, joined by a switch in a namespace of its own.

The host's own network, its routes and its filters are left alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

_SUBNET = "10.77.41"


class Networks:
    """So many machines, numbered from 1, which reach each other by their addresses.

    Needs root, and ip of iproute2. Raises CalledProcessError where the kernel lacks something.
    """

    def __init__(self, count: int) -> None:
        self._prefix = f"gwray{os.getpid()}"
        self._made: list[str] = []
        try:
            self._build(count)
        except BaseException:
            self.close()
            raise

    def address(self, number: int) -> str:
        return f"{_SUBNET}.{number}"

    def within(self, number: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a machine."""
        return ["ip", "netns", "exec", self._name(number), *command]

    def pids(self, number: int) -> list[int]:
        return _pids(self._name(number))

    def kill(self, number: int) -> None:
        """End all processes of a machine at once, as if it had lost its power."""
        _kill(self._name(number))

    def cut(self, number: int) -> None:
        """Let nothing reach a machine any more, or leave it."""
        _ip("-n", f"{self._prefix}-0", "link", "set", f"port{number}", "down")

    def close(self) -> None:
        """End what runs there, and take all down."""
        for name in self._made:
            _kill(name)
            subprocess.run(["ip", "netns", "del", name], check=False)  # noqa: S603, S607

    def _name(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def _add(self, number: int) -> str:
        name = self._name(number)
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")
        return name

    def _build(self, count: int) -> None:
        switch = self._add(0)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for number in range(1, count + 1):
            name, port = self._add(number), f"port{number}"
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")


@contextmanager
def networks(count: int) -> Generator[Networks]:
    made = Networks(count)
    try:
        yield made
    finally:
        made.close()


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)  # noqa: S603, S607
    return done.stdout


def _pids(name: str) -> list[int]:
    return [int(pid) for pid in _ip("netns", "pids", name).split()]


def _kill(name: str) -> None:
    # Some start others while they are killed.
    while pids := _pids(name):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
