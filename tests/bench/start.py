"""How soon a fresh server serves, and whether its first request waits for anything.

    python tests/bench/start.py

Each round starts a server with compiled code that is kept already, tells the seconds until it
serves, and times ten requests over one connection that was used for nothing but asking for the
server's facts. `alike` are ten times the same; `new` are each two pixels wider than the last, so
that tables are built for every one. Further rounds tell when servers with two workers serve.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np

from gradwire import Client, ops

SIZES = {"small": (1, 3, 32, 32), "medium": (8, 16, 112, 112), "large": (8, 64, 224, 224)}
REQUESTS = 10


def evaluate_s(client: Client, shape: tuple[int, ...]) -> float:
    """Return the seconds of one call."""
    gradient = np.ones(shape, np.float32)
    out = np.zeros((*shape[:2], shape[2] // 2, shape[3] // 2), np.float32)
    operator = ops.InterpolateBackward(mode="bilinear", sizes=shape[2:], data_format="NCX")
    begin = time.perf_counter()
    client.evaluate(operator, gradient, out=out)
    return time.perf_counter() - begin


@contextmanager
def started(*flags: str) -> Generator[tuple[float, str]]:
    """Start a server; yield the seconds until it serves, and its address."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "gradwire_server", "--address", "127.0.0.1:0", *flags]
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        yield time.perf_counter() - begin, address
        server.terminate()


def run(shape: tuple[int, ...], *, wider: int) -> tuple[float, list[float]]:
    """Start a server; return seconds until it serves and those of each request."""
    times: list[float] = []
    with started() as (ready, address), Client(address) as client:
        client.server_info()
        for number in range(REQUESTS):
            width = shape[3] + number * wider
            times.append(evaluate_s(client, (*shape[:3], width)))
    return ready, times


def main() -> None:
    """Print medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    subprocess.run([sys.executable, "-m", "gradwire_server", "--compile-only"], check=True)
    report: dict[str, dict[str, float]] = {}
    for (size, shape), (kind, wider) in product(SIZES.items(), (("alike", 0), ("new", 2))):
        name = f"{size}, {kind}"
        rounds = [run(shape, wider=wider) for _ in range(arguments.rounds)]
        first, tenth = (
            1e3 * statistics.median(times[place] for _, times in rounds) for place in (0, -1)
        )
        ratio = statistics.median(times[0] / times[-1] for _, times in rounds)
        report[name] = {
            "ready_s": statistics.median(ready for ready, _ in rounds),
            "first_ms": first,
            "tenth_ms": tenth,
            "ratio": ratio,
        }
        print(name, {key: round(value, 3) for key, value in report[name].items()})  # noqa: T201
    ready: list[float] = []
    for _ in range(arguments.rounds):
        with started("--workers", "2") as (ready_s, _address):
            ready.append(ready_s)
    report["two workers"] = {"ready_s": statistics.median(ready)}
    print("two workers", report["two workers"])  # noqa: T201
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
