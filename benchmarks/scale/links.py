"""Servers in network namespaces, each behind a link of bounded rate.

Needs a network namespace that the caller may change, as `unshare -rn` gives: links and networks end
with the processes in them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

_PORT = 50051


def _run(words: str) -> None:
    subprocess.run(["/usr/bin/env", *words.split()], check=True)


def _bound(device: str, rate: str) -> None:
    """Bound the rate of data that leaves by a device."""
    _run(f"tc qdisc add dev {device} root tbf rate {rate} burst 128kb latency 100ms")


@contextmanager
def linked(number: int, rate: str, *flags: str) -> Generator[str]:
    """Run a server behind a link of bounded rate; yield its address.

    The rate holds each way.
    """
    near, far = f"near{number}", f"far{number}"
    ours, theirs = f"10.78.{number}.1", f"10.78.{number}.2"
    own = [sys.executable, "-m", "benchmarks.scale.links", theirs, far, rate, *flags]
    with subprocess.Popen(
        ["/usr/bin/env", "unshare", "-n", *own],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "ready\n"
            _run(f"ip link add {near} type veth peer name {far} netns {server.pid}")
            _run(f"ip addr add {ours}/24 dev {near}")
            _run(f"ip link set {near} up")
            _bound(near, rate)
            server.stdin.write("linked\n")
            server.stdin.flush()
            while not (line := server.stdout.readline()).startswith("gradwire-server listening"):
                assert line
            yield f"{theirs}:{_PORT}"
        finally:
            server.kill()


@contextmanager
def fleet(count: int, rate: str, *flags: str) -> Generator[list[str]]:
    """Run servers behind links of their own; yield their addresses."""
    _run("ip link set lo up")
    with ExitStack() as stack:
        yield [stack.enter_context(linked(number, rate, *flags)) for number in range(count)]


def _serve(address: str, device: str, rate: str, *flags: str) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    _run("ip link set lo up")
    _run(f"ip addr add {address}/24 dev {device}")
    _run(f"ip link set {device} up")
    _bound(device, rate)
    os.execv(  # noqa: S606 - our own server
        sys.executable,
        [sys.executable, "-m", "gradwire_server", "--address", f"{address}:{_PORT}", *flags],
    )


if __name__ == "__main__":
    _serve(*sys.argv[1:])
