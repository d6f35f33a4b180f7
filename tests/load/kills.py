"""Kills, renews and stops workers and cuts connections under load; prints what callers saw as JSON.

    PYTHONPATH=tests python -m load.kills

A server with two workers is called without a pause: small calls, evaluate_many and streams,
blocking and by asyncio, through one client with its defaults each. Meanwhile

- 20 kills: one worker after the other, at random, is killed as soon as both serve
- both at once: so that nobody serves for a while
- rolling restart: on SIGUSR2, twice
- connection age: connections last 0.5 s
- stopped workers: one that is stopped, and so neither ends nor answers, three times; the server is
  told to replace it after 3 s
- 100 cuts: every connection is cut at some byte of either direction, an eighth of them within
  their first 64 KiB, the others within 64 MiB
- stop: on SIGTERM the server ends, and another one is started on its port

Ends with status 1 if a call was lost or brought other bits than NumPy computes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from support.load import Callers
from support.processes import Command, running_command
from support.raw_calls import wait_until
from support.relay import drawn_cuts, relaying

KINDS = ("unary", "unary", "async unary", "many", "stream", "copy", "async stream")
FLAGS = ("--workers", "2")


def end(command: Command, *numbers: int, by: int = signal.SIGKILL) -> None:
    """Send workers a signal at once, and wait until others serve."""
    text = " worker serves "
    seen, workers = command.log.count(text), command.workers
    for number in numbers:
        os.kill(workers[number], by)
    command.wait_for_log(text, times=seen + len(numbers))


def many_kills(command: Command) -> None:
    chance = random.Random(0)  # noqa: S311 - nothing secret
    for _ in range(20):
        time.sleep(chance.uniform(0.1, 0.5))
        end(command, chance.randrange(2))


def stop_workers(command: Command) -> None:
    for number in (0, 1, 0):
        end(command, number, by=signal.SIGSTOP)


def renew(command: Command) -> None:
    for times in (1, 2):
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart done", times=times)


def run(folder: Path) -> dict[str, Any]:
    """Go through all phases; return what callers saw in each."""
    report: dict[str, Any] = {}

    def phase(name: str, address: str, action: Callable[[], None]) -> None:
        """Have callers call while something happens, and a moment longer."""
        with Callers(address, *KINDS) as callers:
            callers.wait_for_more()
            action()
            time.sleep(1.0)
            callers.wait_for_more()
        report[name] = callers.seen
        sys.stderr.write(f"{name}: {report[name]}\n")

    def server(*flags: str) -> AbstractContextManager[Command]:
        return running_command(*FLAGS, *flags, log=folder / str(len(report)))

    with server() as command:
        phase("20 kills", command.address, lambda: many_kills(command))
    with server() as command:
        phase("both at once", command.address, lambda: end(command, 0, 1))
        phase("rolling restart", command.address, lambda: renew(command))
    with server("--max-connection-age-s", "0.5") as command:
        phase("connection age", command.address, lambda: time.sleep(5))
    with server("--stall-timeout-s", "3") as command:
        phase("3 workers stopped", command.address, lambda: stop_workers(command))
    # Cuts are so rare that fewer connections in a row than the eight tries of a call are cut
    # before it succeeds.
    down, up = drawn_cuts(0, early=0.125, late=(1 << 20, 64 << 20))
    with server() as command, relaying(command.address, cuts=down, cuts_up=up) as relay:

        def cut() -> None:
            wait_until(lambda: relay.cut >= 100, patience_s=600.0)
            relay.spare()

        phase("100 cuts", relay.address, cut)
    with server() as command, ExitStack() as stack:

        def stop() -> None:
            command.stop()
            address = ("--address", command.address)
            stack.callback(Command(*FLAGS, *address, log=folder / "successor").close)

        phase("stop", command.address, stop)
    return report


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as FOLDER:
        REPORT = run(Path(FOLDER))
    sys.stdout.write(json.dumps(REPORT, indent=2) + "\n")
    sys.exit(any(seen["wrong"] or seen["lost"] or not seen["calls"] for seen in REPORT.values()))
