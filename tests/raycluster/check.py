"""Scales replicas on a real Ray cluster under load, and kills parts of it; prints what callers saw.

    PYTHONPATH=tests python -m raycluster.check [--cut]

Three nodes, a head and two with room for four replicas each, are network namespaces of this
machine; a fourth one calls: small calls, evaluate_many and streams, blocking and by asyncio.

- refusal: servers that cannot start are none
- up: from one replica to four, since evaluations wait
- replica: the server of one is killed; Ray starts its actor anew
- node: one of the two nodes is killed, with all that runs there; Ray starts its replicas elsewhere
- controller: the process that serves the list is killed; its successor lists the same replicas
- cut: with --cut, a node's link is down instead: nothing is told, and connections stay open
- down: a single caller is left, and three replicas go
- head: the head's machine is killed, and the list with it; callers go on with the one they have

Ends with status 1 if a call was lost or brought other bits than NumPy computes. The machine that
calls runs this module too, as `watch TARGET` and as `call TARGET KIND...`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from gradwire import UnavailableError
from gradwire._transport.replicas import resolve
from raycluster.nodes import Nodes, ray_cluster
from support.load import PAUSE_S, Callers
from support.raw_calls import wait_until

_KINDS = ("unary", "async unary", "many", "copy", "async stream", *["stream"] * 6)
_MOST = 4


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def watch(target: str) -> None:
    """Print a list of replicas whenever it changed, until this is killed; empty if none is had."""
    told: tuple[str, ...] | None = None
    while True:
        seen: tuple[str, ...] = ()
        with contextlib.suppress(UnavailableError):
            seen = resolve(target)
        if seen != told:
            _say(json.dumps(seen))
            told = seen
        time.sleep(0.2)


def call(target: str, *kinds: str) -> None:
    """Say "calling" once every caller has had results; what they saw, when standard input ends."""
    with Callers(target, *kinds, pause_s=PAUSE_S) as callers:
        callers.wait_for_more()
        _say("calling")
        sys.stdin.read()
        callers.wait_for_more()
    _say(json.dumps(callers.seen))


class Watch:
    """Follows a target's list of addresses, from the machine that calls."""

    def __init__(self, cluster: Nodes, target: str) -> None:
        words = (sys.executable, "-m", "raycluster.check", "watch", target)
        self._process = cluster.start(cluster.caller, *words)
        self.serving: frozenset[str] = frozenset()
        threading.Thread(target=self._follow, daemon=True).start()

    def wait_for(self, wanted: Callable[[frozenset[str]], bool]) -> float:
        """Wait until the list is as wanted; return the seconds that took."""
        began = time.monotonic()
        wait_until(lambda: wanted(self.serving), patience_s=240.0)
        return round(time.monotonic() - began, 1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.serving = frozenset(json.loads(line))
            sys.stderr.write(f"{time.strftime('%X')} serving: {sorted(self.serving)}\n")


@contextlib.contextmanager
def calling(cluster: Nodes, target: str, *kinds: str) -> Generator[dict[str, Any]]:
    """Have callers call during a block; what they saw is in the dictionary after it."""
    words = (sys.executable, "-m", "raycluster.check", "call", target, *kinds)
    process = cluster.start(cluster.caller, *words)
    seen: dict[str, Any] = {}
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "calling\n":
            raise RuntimeError(f"{words} ended with {process.wait()}")
        yield seen
        process.stdin.close()
        seen |= json.loads(process.stdout.read())
    finally:
        process.kill()
        process.wait()


def wait_for_others(cluster: Nodes, watch: Watch) -> float:
    """Wait until as many replicas as there may be serve, none of them on the last node."""
    there = cluster.machines.address(cluster.caller - 1) + ":"
    return watch.wait_for(
        lambda seen: len(seen) == _MOST and not any(one.startswith(there) for one in seen)
    )


def kill_server(cluster: Nodes, watch: Watch) -> float:
    """Kill one replica's server; return the seconds until as many as before serve without it."""
    before = watch.serving
    pid = next(
        pid
        for node in range(2, cluster.caller)
        for pid in cluster.machines.pids(node)
        if b"gradwire_ray.hosted" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(pid, signal.SIGKILL)
    return watch.wait_for(lambda seen: len(seen) == len(before) and seen != before)


def kill_controller(cluster: Nodes, watch: Watch) -> float:
    """Kill the controller; return the seconds until another one lists the same replicas."""
    before = watch.serving
    for pid in cluster.machines.pids(1):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Controller"):
            os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    watch.wait_for(lambda seen: not seen)
    watch.wait_for(lambda seen: seen == before)
    return round(time.monotonic() - began, 1)


def up(cluster: Nodes, text: str) -> str:
    """Run gradwire-ray up with further words; return the target."""
    return cluster.command("up", "--address", cluster.head, *text.split()).strip()


def check_refusal(cluster: Nodes) -> None:
    """Fail unless servers that cannot start end the command, which says why and leaves nothing."""
    try:
        up(cluster, "-- --insecure --tokens /nowhere")
    except RuntimeError as error:
        if "0 of 1 replicas serve: " in str(error) and "ended with status 1" in str(error):
            return
        raise
    raise RuntimeError("a server without its tokens file serves")


def run(cluster: Nodes, *, cut: bool) -> dict[str, Any]:
    """Go through all phases; return what callers saw, and how long each took."""
    check_refusal(cluster)
    scaling = f"--min 1 --max {_MOST} --target-queue 0.4 --down-after-s 4"
    target = up(cluster, f"{scaling} -- --insecure --backend numpy_cpu")
    watch = Watch(cluster, target)
    machines, last = cluster.machines, cluster.caller - 1
    with calling(cluster, target, *_KINDS) as load:
        load["up_s"] = watch.wait_for(lambda seen: len(seen) == _MOST)
        load["replica_s"] = kill_server(cluster, watch)
        (machines.cut if cut else machines.kill)(last)
        load["node_s"] = wait_for_others(cluster, watch)
        load["controller_s"] = kill_controller(cluster, watch)
    with calling(cluster, target, "unary") as leisure:
        leisure["down_s"] = watch.wait_for(lambda seen: len(seen) == 1)
    watch.close()
    cluster.command("down", "--address", cluster.head)
    return {"load": load, "leisure": leisure, "headless": check_headless(cluster)}


def check_headless(cluster: Nodes) -> dict[str, Any]:
    """Kill the head under load; return what callers saw for a while."""
    target = up(cluster, "--min 2 -- --insecure --backend numpy_cpu")
    with calling(cluster, target, "unary", "async unary", "stream") as headless:
        cluster.machines.kill(1)
        # Longer than a list counts as new; nodes do without a head for a minute.
        time.sleep(10.0)
    return headless


if __name__ == "__main__":
    if sys.argv[1:2] == ["watch"]:
        watch(*sys.argv[2:])
    elif sys.argv[1:2] == ["call"]:
        call(*sys.argv[2:])
    else:
        with ray_cluster(nodes=2, cpus=4) as CLUSTER:
            REPORT = run(CLUSTER, cut="--cut" in sys.argv)
        _say(json.dumps(REPORT, indent=2))
        if any(seen["wrong"] or seen["lost"] for seen in REPORT.values()):
            sys.exit("calls were lost, or brought other bits")
