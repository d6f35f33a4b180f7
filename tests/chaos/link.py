"""Two networks joined by a line in user space that delays, loses and holds back packets.

    unshare -rn python -m chaos.link

Each network is a namespace with a device (tun) whose packets this process carries to the other one.
The server is in one, callers in the other; the kernel's TCP deals with what is lost. What callers
saw is printed as JSON.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

from gradwire import Client, GradwireError
from support.clients import ITEM, LARGE, ONCE, SMALL, copied
from support.load import PATIENT, Callers

# linux/if_tun.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
ADDRESS = "10.77.0.2:50051"


def device(name: str, address: str) -> int:
    """Make this namespace's end of the line; return what its packets are read from."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    for words in (f"addr add {address}/24 dev {name}", f"link set {name} up", "link set lo up"):
        subprocess.run(["/usr/bin/env", "ip", *words.split()], check=True)  # noqa: S603 - our words
    return end


def may_link() -> bool:
    """Whether a process may have networks and devices of its own."""
    words = "ip link set lo up && ip tuntap add dev t0 mode tun && ip addr add 10.0.0.1 dev t0"
    command = ["/usr/bin/env", "unshare", "-rn", "sh", "-c", words]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


class Line:
    """Carries packets between two ends, in a thread.

    up     whether any is carried
    lossy  whether one in a hundred is lost, and others come late and out of order
    lost   packets so far
    """

    def __init__(self, one: int, other: int) -> None:
        self._to = {one: other, other: one}
        self.up, self.lossy, self.lost = True, False, 0
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        chance, numbers = random.Random(0), count()  # noqa: S311 - nothing secret
        under_way: list[tuple[float, int, int, bytes]] = []
        with selectors.DefaultSelector() as ready:
            for end in self._to:
                ready.register(end, selectors.EVENT_READ)
            while True:
                left_s = under_way[0][0] - time.monotonic() if under_way else 0.1
                for key, _ in ready.select(max(0.0, left_s)):
                    packet = os.read(key.fd, 1 << 16)
                    if not self.up or (self.lossy and chance.random() < 0.01):
                        self.lost += 1
                        continue
                    due = time.monotonic() + self.lossy * chance.uniform(0.004, 0.008)
                    heapq.heappush(under_way, (due, next(numbers), self._to[key.fd], packet))
                while under_way and under_way[0][0] <= time.monotonic():
                    _, _, end, packet = heapq.heappop(under_way)
                    os.write(end, packet)


def serve_beyond(descriptor: int) -> None:
    """Make the far end in a network of its own, hand it over, and become a server there."""
    with socket.socket(fileno=descriptor) as back:
        socket.send_fds(back, [b"."], [device("far", "10.77.0.2")])
    words = f"--address {ADDRESS} --insecure --backend numpy_cpu --stall-timeout-s 5"
    command = [sys.executable, "-m", "gradwire_server", *words.split()]
    os.execv(sys.executable, command)  # noqa: S606 - our own server


@contextmanager
def joined() -> Generator[Line]:
    """Run a server beyond a line."""
    near = device("near", "10.77.0.1")
    ours, theirs = socket.socketpair()
    own = [sys.executable, "-m", "chaos.link", str(theirs.fileno())]
    with subprocess.Popen(  # noqa: S603 - this very module
        ["/usr/bin/env", "unshare", "-n", *own],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
    ) as server:
        _, ends, _, _ = socket.recv_fds(ours, 1, 1)
        line = Line(near, ends[0])
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"gradwire-server listening on ")
        try:
            yield line
        finally:
            server.kill()


def called(client: Client, timeout_s: float) -> tuple[set[str], float]:
    """Make a call of each kind; return how they ended, and the seconds of the slowest."""
    ends, slowest_s = set[str](), 0.0
    for call in (
        lambda: copied(client, SMALL, timeout_s=timeout_s),
        lambda: copied(client, LARGE, timeout_s=timeout_s),
        lambda: next(client.evaluate_many([ITEM], timeout_s=timeout_s)),
    ):
        began = time.monotonic()
        try:
            call()
            ends.add("a result")
        except GradwireError as error:
            ends.add(type(error).__name__)
        slowest_s = max(slowest_s, time.monotonic() - began)
    return ends, slowest_s


def report(line: Line) -> dict[str, Any]:
    """Call while the other end vanishes without a word and comes back, and while packets are lost.

    Then the line is also down for a second now and then.
    """
    with Client(ADDRESS, retry=ONCE) as client:
        first, _ = called(client, 30.0)
        line.up = False
        gone, slowest_s = called(client, 2.0)
        line.up = True
    with Client(ADDRESS) as client:
        back, _ = called(client, 30.0)
    line.lossy = True
    with Callers(ADDRESS, "unary", "async unary", "many", "small stream", retry=PATIENT) as callers:
        for _ in range(2):
            callers.wait_for_more()
            line.up = False
            time.sleep(1.0)
            line.up = True
        callers.wait_for_more()
    told = {"gone": sorted(gone), "slowest_gone_s": slowest_s, "there": sorted(first | back)}
    return told | callers.seen | {"packets_lost": line.lost}


if __name__ == "__main__":
    if sys.argv[1:]:
        serve_beyond(int(sys.argv[1]))
    with joined() as LINE:
        sys.stdout.write(json.dumps(report(LINE)))
