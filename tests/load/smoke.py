"""A closed loop of small and large calls for a while; prints latencies, rates and errors as JSON.

    python tests/load/smoke.py [--seconds 30] [--target HOST:PORT] [--json FILE]

Four threads share one client: three send 12 KiB gradients back to back, one 6 MiB gradients.
Without a target it starts a server of its own on loopback. Ends with status 1 if any call failed or
gave other bits than the first of its kind.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import Client, GradwireError, ops

_OPERATOR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")


@dataclass(frozen=True)
class Kind:
    """A kind of call, with as many callers.

    diff_dst  shape sent, float32
    diff_src  shape that comes back
    """

    callers: int
    diff_dst: tuple[int, ...]
    diff_src: tuple[int, ...]


KINDS = {
    "small": Kind(3, (1, 3, 32, 32), (1, 3, 16, 16)),
    "large": Kind(1, (1, 16, 320, 320), (1, 16, 160, 160)),
}


@dataclass
class Tally:
    """What callers of one kind saw; latencies in seconds."""

    latencies: list[float] = field(default_factory=list[float])
    errors: Counter[str] = field(default_factory=Counter[str])


def _call(client: Client, kind: Kind) -> Callable[[], NDArray[Any]]:
    diff_dst = np.random.default_rng(0).normal(size=kind.diff_dst).astype(np.float32)
    return lambda: client.evaluate(_OPERATOR, diff_dst, output_shape=kind.diff_src)


def _loop(call: Callable[[], NDArray[Any]], tally: Tally, until: float) -> None:
    first = call()
    while (started := time.perf_counter()) < until:
        try:
            result = call()
        except GradwireError as error:
            tally.errors[type(error).__name__] += 1
            continue
        tally.latencies.append(time.perf_counter() - started)
        if not np.array_equal(result, first):
            tally.errors["other bits"] += 1


def _report(kind: Kind, tally: Tally, seconds: float) -> dict[str, Any]:
    ms = np.percentile(np.array(tally.latencies or [np.nan]) * 1e3, [50, 90, 99, 100])
    moved = 4 * (np.prod(kind.diff_dst) + np.prod(kind.diff_src)) * len(tally.latencies)
    return {
        "callers": kind.callers,
        "calls": len(tally.latencies),
        "calls_per_s": round(len(tally.latencies) / seconds, 1),
        "megabytes_per_s": round(float(moved) / seconds / 1e6, 1),
        "latency_ms": dict(zip(("p50", "p90", "p99", "max"), ms.round(3).tolist(), strict=True)),
        "errors": dict(tally.errors),
    }


def run(target: str, seconds: float) -> dict[str, Any]:
    """Load a server and return what callers saw, by kind."""
    tallies = {name: Tally() for name in KINDS}
    with Client(target) as client:
        client.wait_ready(30)
        until = time.perf_counter() + seconds
        threads = [
            threading.Thread(target=_loop, args=(_call(client, kind), tallies[name], until))
            for name, kind in KINDS.items()
            for _ in range(kind.callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {name: _report(kind, tallies[name], seconds) for name, kind in KINDS.items()}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--target")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    server = None
    target = arguments.target
    if target is None:
        server = subprocess.Popen(
            [sys.executable, "-m", "gradwire_server", "--address", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert server.stdout is not None
        target = server.stdout.readline().split()[-1]
    try:
        facts = run(target, arguments.seconds)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    text = json.dumps(facts, indent=2)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    if any(facts[name]["errors"] or not facts[name]["calls"] for name in facts):
        sys.exit(1)


if __name__ == "__main__":
    main()
