"""Kills, renews and stops workers and cuts connections under load; prints what callers saw as JSON.

    PYTHONPATH=tests python -m load.kills [--kills 20] [--cuts 100] [--json FILE]

A server with two workers is called without a pause: small calls, evaluate_many and streams,
blocking and by asyncio, through one client with its defaults each. Meanwhile

- kills: one worker after the other, at random, is killed as soon as both serve
- both at once: so that nobody serves for a while
- rolling restart: on SIGUSR2, twice
- connection age: connections last 0.5 s
- stopped workers: one that is stopped, and so neither ends nor answers, three times; the server is
  told to replace it after 3 s
- cuts: every connection is cut at some byte of either direction, until so many were; an eighth
  of them within their first 64 KiB, the others within 64 MiB
- stop: on SIGTERM the server ends, and another one is started on its port

Ends with status 1 if a call was lost or brought other bits than NumPy computes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from load.program import reported
from support.load import Callers
from support.processes import Command, running_command
from support.raw_calls import wait_until
from support.relay import drawn_cuts, relaying

KINDS = ("unary", "unary", "async unary", "many", "stream", "copy", "async stream")
FLAGS = ("--workers", "2")
# Every phase lasts a moment longer than what happens in it.
_AFTER_S = 1.0
_PATIENCE_S = 600.0
# What leaves calls with their default of eight tries a chance: no more than that many connections
# in a row die before a call is through.
_EARLY, _LATE = 0.125, (1 << 20, 64 << 20)


def kill(command: Command, *numbers: int) -> None:
    """Kill workers at once, and wait until others serve."""
    text = " worker serves "
    seen = command.log.count(text)
    killed = [command.workers[number] for number in numbers]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    command.wait_for_log(text, times=seen + len(killed))


def many_kills(command: Command, *, kills: int) -> None:
    """Kill one worker after the other."""
    chance = random.Random(0)  # noqa: S311 - nothing secret
    for _ in range(kills):
        time.sleep(chance.uniform(0.1, 0.5))
        kill(command, chance.randrange(2))


def stop_workers(command: Command, *, times: int) -> None:
    """Stop one worker after the other, and wait until others serve in their places."""
    for number in range(times):
        text = f" worker serves worker={number % 2} "
        seen = command.log.count(text)
        os.kill(command.workers[number % 2], signal.SIGSTOP)
        command.wait_for_log(text, times=seen + 1)


def renew(command: Command, *, times: int) -> None:
    """Restart one worker after the other."""
    for number in range(times):
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart done", times=number + 1)


def under_load(address: str, action: Callable[[], None]) -> dict[str, Any]:
    """Have callers call while something happens; return what they saw."""
    began = time.monotonic()
    with Callers(address, *KINDS) as callers:
        callers.wait_for_more()
        action()
        time.sleep(_AFTER_S)
        callers.wait_for_more()
    return {"seconds": round(time.monotonic() - began, 1), **callers.seen}


def run(folder: Path, *, kills: int, cuts: int) -> dict[str, Any]:
    """Go through all phases; return what callers saw in each."""
    report: dict[str, Any] = {}

    def phase(
        name: str, command: Command, action: Callable[[], None], address: str | None = None
    ) -> None:
        report[name] = under_load(address or command.address, action)
        sys.stderr.write(f"{name}: {report[name]}\n")

    with running_command(*FLAGS, log=folder / "1") as command:
        phase(f"{kills} kills", command, lambda: many_kills(command, kills=kills))
    with running_command(*FLAGS, log=folder / "2") as command:
        phase("both at once", command, lambda: kill(command, 0, 1))
        phase("rolling restart", command, lambda: renew(command, times=2))
    with running_command(*FLAGS, "--max-connection-age-s", "0.5", log=folder / "3") as command:
        phase("connection age", command, lambda: time.sleep(5))
    with running_command(*FLAGS, "--stall-timeout-s", "3", log=folder / "6") as command:
        phase("3 workers stopped", command, lambda: stop_workers(command, times=3))
    down, up = drawn_cuts(0, early=_EARLY, late=_LATE)
    with (
        running_command(*FLAGS, log=folder / "7") as command,
        relaying(command.address, cuts=down, cuts_up=up) as relay,
    ):

        def cut() -> None:
            wait_until(lambda: relay.cut >= cuts, patience_s=_PATIENCE_S)
            relay.spare()

        phase(f"{cuts} cuts", command, cut, relay.address)
    with running_command(*FLAGS, log=folder / "4") as command:
        successors: list[Command] = []

        def stop() -> None:
            command.signal(signal.SIGTERM)
            if command.wait():
                raise RuntimeError(command.log)
            flags = (*FLAGS, "--address", command.address)
            successors.append(Command(*flags, log=folder / "5"))

        try:
            phase("stop", command, stop)
        finally:
            for successor in successors:
                successor.close()
    return report


def main() -> None:
    """Run and print."""
    report = reported(__doc__, run, kills=20, cuts=100)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    if any(seen["wrong"] or seen["lost"] or not seen["calls"] for seen in report.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
