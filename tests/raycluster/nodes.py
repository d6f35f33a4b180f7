"""A Ray cluster whose nodes are network namespaces, joined by a switch in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_SUBNET = "10.77.41"


class Networks:
    """So many machines, numbered from 1, which reach each other by their addresses.

    Needs root, and ip of iproute2. Raises CalledProcessError where the kernel lacks something.
    """

    def __init__(self, count: int) -> None:
        self._prefix = f"gwray{os.getpid()}"
        self._made = 0
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
        return [int(pid) for pid in _ip(f"netns pids {self._name(number)}").split()]

    def kill(self, number: int) -> None:
        """End all processes of a machine at once, as if it had lost its power."""
        # Some start others while they are killed.
        while pids := self.pids(number):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def cut(self, number: int) -> None:
        """Let nothing reach a machine any more, or leave it."""
        _ip(f"-n {self._prefix}-0 link set port{number} down")

    def close(self) -> None:
        """End what runs there, and take all down."""
        for number in range(self._made):
            self.kill(number)
            command = ["ip", "netns", "del", self._name(number)]
            subprocess.run(command, check=False)  # noqa: S603

    def _name(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def _add(self, number: int) -> str:
        name = self._name(number)
        _ip(f"netns add {name}")
        self._made += 1
        _ip(f"-n {name} link set lo up")
        return name

    def _build(self, count: int) -> None:
        switch = self._add(0)
        _ip(f"-n {switch} link add switch type bridge")
        _ip(f"-n {switch} link set switch up")
        for number in range(1, count + 1):
            name, port = self._add(number), f"port{number}"
            _ip(f"-n {name} link add eth0 type veth peer {port} netns {switch}")
            _ip(f"-n {switch} link set {port} master switch up")
            _ip(f"-n {name} addr add {self.address(number)}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")


def _ip(words: str) -> str:
    command = ["ip", *words.split()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


_PORT = 6379
_RAY = str(Path(sys.executable).with_name("ray"))
# Ray ends workers where the machine is short of memory, whoever uses it.
_VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise replicas yield to every other process of the machine.
    "RAY_worker_niceness": "0",
}


class Nodes:
    """A head, number 1, on which no replica has room, and nodes from 2 on; one more calls."""

    def __init__(self, machines: Networks, folder: Path, *, nodes: int, cpus: int) -> None:
        self.machines = machines
        self.caller = nodes + 2
        self._environment = {**os.environ, **_VARIABLES}
        head = ("--head", f"--port={_PORT}", "--include-dashboard=false", "--disable-usage-stats")
        self._start(1, *head, "--num-cpus=0", f"--temp-dir={folder / '1'}")
        for number in range(2, nodes + 2):
            self._start(number, f"--address={self.head}", f"--num-cpus={cpus}")

    @property
    def head(self) -> str:
        return f"{self.machines.address(1)}:{_PORT}"

    def command(self, *words: str) -> str:
        """Run gradwire-ray on the head; return what it prints."""
        return self.run(1, str(Path(sys.executable).with_name("gradwire-ray")), *words)

    def run(self, number: int, *words: str) -> str:
        """Run a program on a machine; return what it prints. RuntimeError where it fails."""
        command = self.machines.within(number, words)
        done = subprocess.run(  # noqa: S603 - our own programs
            command, env=self._environment, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, number: int, *words: str) -> subprocess.Popen[str]:
        """Start a program on a machine, with pipes to and from it."""
        return subprocess.Popen(  # noqa: S603 - our own programs
            self.machines.within(number, words),
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # As replicas have: the kernel may share out the processor by sessions.
            start_new_session=True,
        )

    def _start(self, number: int, *flags: str) -> None:
        own = f"--node-ip-address={self.machines.address(number)}"
        # A node that joins a head which is gone waits for it without end.
        words = ("timeout", "60", _RAY, "start", own, "--num-gpus=0", *flags)
        self.run(number, *words, "--object-store-memory=80000000")


@contextmanager
def ray_cluster(*, nodes: int, cpus: int) -> Generator[Nodes]:
    """Run a cluster for the length of a block, of a head and so many nodes beside it."""
    # Paths of Ray's sockets are long, and may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder,
        closing(Networks(nodes + 2)) as machines,
    ):
        began = time.monotonic()
        cluster = Nodes(machines, Path(folder), nodes=nodes, cpus=cpus)
        sys.stderr.write(f"a cluster of {nodes + 1} in {time.monotonic() - began:.1f} s\n")
        yield cluster
