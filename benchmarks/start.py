"""Time until a fresh server serves, and of its first request.

    python -m benchmarks start

Each round starts servers whose compiled code is cached and times ten requests over new connections,
with a pause before each: occasional callers all find the processors' caches cold, not the first one
alone. `alike` requests are ten times the same; `new` ones are each two pixels wider than the last,
so that tables are built for every one. Small requests take one message, `many` the stream of
evaluate_many, medium and large ones streams of their own.

    both used     the client's process and the server have seen many such calls, but not these
    fresh server  the server has had no calls
    fresh client  the client's process has made no call but one for the server's facts
    first of all  not even that, so that the first request connects
    both fresh    a fresh client of a fresh server

Times of `both used` do not come from fresh processes. Further rounds measure the start of servers
with two workers, and, in turns, the time from the start of a server's process to its first right
answer: of a server that computes with NumPy until its kernels are there, with an empty and a full
cache of them, and of one that waits for kernels, with a full cache. `--only` without sizes measures
these alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.servers import OURS, started
from gradwire import Client, Item, ops
from gradwire_server.local_client import LocalClient

SIZES = {
    "small": (1, 3, 32, 32),
    "many": (3, 1, 32, 32),
    "medium": (8, 16, 112, 112),
    "large": (8, 64, 224, 224),
}
KINDS = {"alike": 0, "new": 2}
REQUESTS = 10


@dataclass(frozen=True, slots=True)
class FirstRequests:
    """Ten requests.

    higher   additional pixels, so that rounds have different requests
    pause_s  before each
    asks     whether the client connects before them, to ask for the server's facts
    """

    size: str
    kind: str
    higher: int
    pause_s: float
    asks: bool = True


def items(shape: tuple[int, ...], *, wider: int, higher: int) -> Iterator[Item]:
    """Make the requests of one case."""
    for number in range(REQUESTS):
        wide = (*shape[:2], shape[2] + higher, shape[3] + (number + 1) * wider)
        out = np.zeros((*wide[:2], wide[2] // 2, wide[3] // 2), np.float32)
        operator = ops.InterpolateBackward(mode="bilinear", sizes=wide[2:], data_format="NCX")
        yield Item(operator, np.ones(wide, np.float32), out=out)


def times_ms(address: str, case: FirstRequests) -> list[float]:
    """Return the milliseconds of each request, over new connections."""
    times: list[float] = []
    requests = items(SIZES[case.size], wider=KINDS[case.kind], higher=case.higher)
    with Client(address) as client:
        if case.asks:
            client.server_info()
        answers = (
            iter(client.evaluate_many(requests, max_in_flight=1))
            if case.size == "many"
            else (client.evaluate(each.op, each.array, out=each.out) for each in requests)
        )
        for _ in range(REQUESTS):
            time.sleep(case.pause_s)
            begin = time.perf_counter()
            next(answers)
            times.append(1e3 * (time.perf_counter() - begin))
    return times


def times_of_process(address: str, case: FirstRequests) -> list[float]:
    """Do the same in a new process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "start",
        "--call",
        address,
        json.dumps(asdict(case)),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    times: list[float] = json.loads(done.stdout)
    return times


@contextmanager
def ready(*flags: str) -> Generator[tuple[float, str]]:
    """Start a server; yield the seconds until it serves, and its address."""
    begin = time.perf_counter()
    with started(*OURS, *flags) as server:
        yield time.perf_counter() - begin, server.address


def first_answers(rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds from the start of a process until its first right answer."""
    item = next(items(SIZES["small"], wider=0, higher=0))
    count, channels, height, width = SIZES["small"]
    shape = count, channels, height // 2, width // 2
    with LocalClient("numpy_cpu") as local:
        right = local.evaluate(item.op, item.array, output_shape=shape).tobytes()
    waits, at_once = ({"GRADWIRE_WAIT_FOR_KERNELS": text} for text in ("true", "false"))
    found: dict[str, list[float]] = {"empty cache": [], "full cache": [], "full cache, waits": []}
    for _ in range(rounds):
        for name, times in found.items():
            with tempfile.TemporaryDirectory() as empty:
                flags = ("--compile-cache", empty) if name == "empty cache" else ()
                env = waits if name == "full cache, waits" else at_once
                begin = time.perf_counter()
                with started(*OURS, *flags, env=env) as server, Client(server.address) as client:
                    result = client.evaluate(item.op, item.array, output_shape=shape)
                    times.append(time.perf_counter() - begin)
                    if result.tobytes() != right:
                        raise RuntimeError(f"{name}: the first answer has other bits")
    return {
        f"first answer, {name}": {"median_s": statistics.median(times), "least_s": min(times)}
        for name, times in found.items()
    }


def run(used: str, case: FirstRequests) -> tuple[float, dict[str, list[float]]]:
    """Return the seconds until a server serves, and times of each way.

    The ways run beside a used server.
    """
    found: dict[str, list[float]] = {}
    found["both used"] = times_ms(used, case)
    with ready() as (ready_s, address):
        found["fresh server"] = times_ms(address, case)
    fresh = replace(case, higher=case.higher + 2)
    found["fresh client"] = times_of_process(used, fresh)
    fresh = replace(case, higher=case.higher + 4, asks=False)
    found["first of all"] = times_of_process(used, fresh)
    with ready() as (_, address):
        found["both fresh"] = times_of_process(address, case)
    return ready_s, found


def use(used: str, cases: Sequence[tuple[str, str]]) -> None:
    """Warm up a server with calls that no round makes."""
    for size, kind in cases:
        times_ms(used, FirstRequests(size, kind, higher=0, pause_s=0.0))


def told(rounds: list[list[float]]) -> dict[str, float]:
    """Return the summary of rounds of ten times."""
    first, tenth = (statistics.median(times[place] for times in rounds) for place in (0, -1))
    ratio = statistics.median(times[0] / times[-1] for times in rounds)
    return {"first_ms": first, "tenth_ms": tenth, "ratio": ratio}


def main(argv: list[str] | None = None) -> int:
    """Print medians over the rounds."""
    parser = machine.parser("start", __doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause-ms", type=float, default=30.0)
    parser.add_argument("--only", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.call:
        address, case = arguments.call
        print(json.dumps(times_ms(address, FirstRequests(**json.loads(case)))))
        return 0
    subprocess.run([sys.executable, "-m", "gradwire_server", "--compile-only"], check=True)
    report: dict[str, dict[str, Any]] = {}
    waits: list[float] = []
    pause_s = arguments.pause_ms / 1e3
    with ready() as (_, used):
        cases = [each for each in product(SIZES, KINDS) if each[0] in arguments.only]
        use(used, cases)
        for size, kind in cases:
            rounds = [
                run(used, FirstRequests(size, kind, higher=6 * number + 2, pause_s=pause_s))
                for number in range(arguments.rounds)
            ]
            waits += [ready_s for ready_s, _ in rounds]
            for way in rounds[0][1]:
                figures = told([found[way] for _, found in rounds])
                report[f"{size}, {kind}, {way}"] = figures
                words = {key: round(value, 2) for key, value in figures.items()}
                print(f"{size}, {kind}, {way}", words)
    two: list[float] = []
    for _ in range(arguments.rounds):
        with ready() as (ready_s, _address):
            waits.append(ready_s)
        with ready("--workers", "2") as (ready_s, _address):
            two.append(ready_s)
    report["one process"] = {"ready_s": statistics.median(waits)}
    report["two workers"] = {"ready_s": statistics.median(two)}
    answers = first_answers(arguments.rounds)
    report |= answers
    for name in ("one process", "two workers", *answers):
        print(name, report[name])
    machine.write(arguments.json, report)
    return 0
