"""Clients that share memory are killed at random moments, and servers under them.

    PYTHONPATH=tests python -m chaos.shared_memory [--clients 1000] [--servers 50]

Ends with status 1 if a result is wrong, or if memory, a file descriptor or a mapping is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gradwire import Client, GradwireError, ops
from support.servers import ServerProcess

LINEAR = ops.DmlResampleGrad(interpolation_mode="linear")
SOURCE, RESULT = (2, 3, 300, 400), (2, 3, 150, 200)
_AT_ONCE = 8
_MOST_LIFE_S = 0.4
_WRONG = 3
_PATIENCE_S = 20.0
_NAMES = Path("/dev/shm")  # noqa: S108 - nothing is written there


@dataclass
class Outcome:
    """What was counted.

    wrong  clients that got other bits
    left   what the last server still had after the clients: mappings, and further descriptors
    names  what appeared in /dev/shm
    """

    clients: int = 0
    killed: int = 0
    servers_killed: int = 0
    wrong: int = 0
    left: int = 0
    names: int = 0

    @property
    def right(self) -> bool:
        """Whether nothing is wrong, and nothing left."""
        return not (self.wrong or self.left or self.names)


def client(address: str, seed: int) -> None:
    """Evaluate for ever; end with a status of its own after a wrong result."""
    array = np.random.default_rng(seed).normal(size=SOURCE).astype(np.float32)
    with Client(address) as shared, Client(address, shared_memory=False) as plain:
        while True:
            with contextlib.suppress(GradwireError):
                given = shared.empty(SOURCE)
                given[...] = array
                results = [
                    shared.evaluate(LINEAR, each, output_shape=RESULT) for each in (array, given)
                ]
                expected = plain.evaluate(LINEAR, array, output_shape=RESULT).tobytes()
                if any(one.tobytes() != expected for one in results):
                    os._exit(_WRONG)


def held(pid: int) -> tuple[int, int]:
    """Count the shared mappings and the open file descriptors of a process."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return maps.count("/memfd:gradwire"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _settled(left: Callable[[], int]) -> int:
    """Wait until nothing is left; return what is."""
    until = time.monotonic() + _PATIENCE_S
    while (now := left()) and time.monotonic() < until:
        time.sleep(0.05)
    return now


def run(clients: int, servers: int, *, seed: int = 0) -> Outcome:
    """Start and kill so many clients, and so many servers under them."""
    chance, outcome = random.Random(seed), Outcome()  # noqa: S311 - not a secret
    names = set(_NAMES.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess("--local-socket", f"{folder}/socket")
        _, files = held(server.process.pid)
        living: dict[int, float] = {}
        while outcome.clients < clients or living:
            while outcome.clients < clients and len(living) < _AT_ONCE:
                outcome.clients += 1
                child = os.fork()
                if not child:
                    client(f"unix:{folder}/socket", outcome.clients)
                living[child] = time.monotonic() + chance.uniform(0, _MOST_LIFE_S)
            for child in [one for one, until in living.items() if until < time.monotonic()]:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                outcome.killed += os.WIFSIGNALED(status)
                outcome.wrong += not os.WIFSIGNALED(status)
                del living[child]
            if outcome.servers_killed < servers * outcome.clients // clients:
                outcome.servers_killed += 1
                server.kill()
                server.start()
            time.sleep(0.005)
        pid = server.process.pid
        outcome.left = _settled(lambda: held(pid)[0] + max(0, held(pid)[1] - files))
        server.kill()
    # Those of other programs on the machine come and go.
    outcome.names = _settled(lambda: len(set(_NAMES.iterdir()) - names))
    return outcome


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--servers", type=int, default=50)
    arguments = parser.parse_args()
    outcome = run(arguments.clients, arguments.servers)
    sys.stdout.write(f"{asdict(outcome)}\n")
    return not outcome.right


if __name__ == "__main__":
    sys.exit(main())
