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
from collections import Counter
from pathlib import Path

import numpy as np

from gradwire import Client, GradwireError
from support.clients import halved
from support.servers import ServerProcess

_AT_ONCE = 8
_MOST_LIFE_S = 0.4
_PATIENCE_S = 20.0
_NAMES = Path("/dev/shm")  # noqa: S108 - nothing is written there


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
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    names = dict.fromkeys(map(str, _NAMES.iterdir()), 1)
    mappings = maps.count("/memfd:gradwire")
    return Counter({"mappings": mappings, "descriptors": len(descriptors), **names})


def run(clients: int, servers: int) -> dict[str, object]:
    """Start and kill so many clients, and so many servers under them."""
    chance, counts = random.Random(0), Counter[str]()  # noqa: S311 - not a secret
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess("--local-socket", f"{folder}/socket")
        before = held(server.process.pid)
        living: dict[int, float] = {}
        while counts["clients"] < clients or living:
            while counts["clients"] < clients and len(living) < _AT_ONCE:
                counts["clients"] += 1
                child = os.fork()
                if not child:
                    client(f"unix:{folder}/socket", counts["clients"])
                living[child] = time.monotonic() + chance.uniform(0, _MOST_LIFE_S)
            for child in [one for one, until in living.items() if until < time.monotonic()]:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                counts["killed" if os.WIFSIGNALED(status) else "wrong"] += 1
                del living[child]
            if counts["servers"] < servers * counts["clients"] // clients:
                counts["servers"] += 1
                server.kill()
                server.start()
            time.sleep(0.005)
        until = time.monotonic() + _PATIENCE_S
        # Names of other programs on the machine come and go.
        while (left := held(server.process.pid) - before) and time.monotonic() < until:
            time.sleep(0.05)
        server.kill()
    return {**counts, "left": left}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*map(int, sys.argv[1:]))))
