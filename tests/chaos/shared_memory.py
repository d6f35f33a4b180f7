"""Clients that share memory are killed at random moments, and servers under them.

    PYTHONPATH=tests python -m chaos.shared_memory CLIENTS SERVERS

Prints how many were killed and how many clients got other bits; and what is left then: mappings
and further descriptors of the last server, and names in /dev/shm.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

import numpy as np

from gradwire import Client, GradwireError
from support.clients import halved
from support.servers import ServerProcess

_AT_ONCE = 8


def client(address: str, seed: int) -> None:
    """Evaluate until it is killed or alone; end after a wrong result."""
    parent = os.getppid()
    array = np.random.default_rng(seed).normal(size=(2, 3, 300, 400)).astype(np.float32)
    with Client(address) as shared, Client(address, shared_memory=False) as plain:
        while os.getppid() == parent:
            with contextlib.suppress(GradwireError):
                given = shared.empty(array.shape)
                given[...] = array
                results = halved(shared, array), halved(shared, given), halved(plain, array)
                if len({each.tobytes() for each in results}) > 1:
                    break
    os._exit(1)


def held(pid: int) -> Counter[str]:
    """Count the shared mappings and the open descriptors of a process, and names of memory."""
    found = Counter(map(str, Path("/dev/shm").iterdir()))  # noqa: S108 - nothing is written there
    found["mappings"] = Path(f"/proc/{pid}/maps").read_text().count("/memfd:gradwire")
    found["descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return found


def run(clients: int, servers: int) -> dict[str, object]:
    """Start and kill so many clients, and so many servers under them."""
    chance, counts = random.Random(0), Counter(clients=clients, servers=servers)  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess("--local-socket", f"{folder}/socket")
        before = held(server.process.pid)
        living = deque[int]()
        for number in range(clients + _AT_ONCE):
            if number < clients:
                child = os.fork()
                if not child:
                    client(f"unix:{folder}/socket", number)
                living.append(child)
            if number >= _AT_ONCE:
                time.sleep(chance.uniform(0, 0.05))
                child = living.popleft()
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                counts["killed" if os.WIFSIGNALED(status) else "wrong"] += 1
            if number % (clients // servers) == clients // servers - 1 and number < clients:
                server.kill()
                server.start()
        until = time.monotonic() + 20.0
        # Names of other programs on the machine come and go.
        while (left := held(server.process.pid) - before) and time.monotonic() < until:
            time.sleep(0.05)
        server.kill()
    return {**counts, "left": left}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*map(int, sys.argv[1:]))))
