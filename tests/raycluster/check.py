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

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from gradwire import UnavailableError
from gradwire._transport.replicas import resolve
from support.load import PAUSE_S, Callers
from support.raw_calls import wait_until

_SUBNET = "10.77.41"


class Networks:
    """So many machines, numbered from 1, joined by a switch.

    Needs root, and ip of iproute2. Raises CalledProcessError where the kernel lacks something.
    """

    def __init__(self, count: int) -> None:
        self._prefix, self._made = f"gwray{os.getpid()}", 0
        with ExitStack() as stack:
            stack.callback(self.close)
            self._build(count)
            stack.pop_all()

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
        self.head = f"{machines.address(1)}:6379"
        head = ("--head", "--port=6379", "--include-dashboard=false", "--disable-usage-stats")
        self._start(1, *head, "--num-cpus=0", f"--temp-dir={folder / '1'}")
        for number in range(2, nodes + 2):
            self._start(number, f"--address={self.head}", f"--num-cpus={cpus}")

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
        ray = str(Path(sys.executable).with_name("ray"))
        words = ("timeout", "60", ray, "start", own, "--num-gpus=0", *flags)
        self.run(number, *words, "--object-store-memory=80000000")


@contextmanager
def ray_cluster(*, nodes: int, cpus: int) -> Generator[Nodes]:
    """Run a cluster for the length of a block, of a head and so many nodes beside it."""
    # Paths of Ray's sockets are long, and may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder,
        closing(Networks(nodes + 2)) as machines,
    ):
        yield Nodes(machines, Path(folder), nodes=nodes, cpus=cpus)


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
        with suppress(UnavailableError):
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


@contextmanager
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
