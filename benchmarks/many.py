"""Rate of evaluate_many on tiny tensors against calls of evaluate.

    python -m benchmarks many [--rounds N] [--seconds S] [--json FILE]

The server is a process of its own with its default settings; this one is the client. An evaluation
is a bilinear x2 gradient, diff_src (1, 3, 16, 16) in float32: 12 KiB up, 3 KiB down. In every round
each contestant takes its turn for about S seconds, in an order that reverses from round to round:

- unary, N threads   evaluate() in a loop in each of N threads, over one Client
- many, ordered      a loop over evaluate_many()
- many, as they come the same with ordered=False
- many, asyncio      the same of an AsyncClient

Printed are medians over the rounds: evaluations per second, microseconds of processor time that
client and server spend on one, and the ratio to the round's fastest unary contestant. Results are
compared with the first one's bits.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine
from benchmarks.servers import OURS, Server, started
from gradwire import AsyncClient, Client, Item, ops

_OPERATOR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
_SHAPE = (1, 3, 16, 16)
_THREADS = (1, 4, 16)
# Best rate of unary calls measured for Triton's Python backend, on 2 cores shared with its clients.
_WANTED_RATE, _WANTED_RATIO = 4450, 2.0


@dataclass(frozen=True, slots=True)
class ManySample:
    """Times of one turn, per evaluation.

    They are seconds, and processor time of client and server.
    """

    seconds: float
    client_s: float
    server_s: float


class ManyContestants:
    """Contestants, and the server that they call."""

    def __init__(self, server: Server) -> None:
        self._server = server
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=(1, 3, 32, 32)).astype(np.float32) for _ in range(16)]
        self._items = [Item(_OPERATOR, array, _SHAPE) for array in arrays]
        self._client = Client(server.address)
        self._wanted = [self._evaluate(item).tobytes() for item in self._items]

    def contestants(self) -> dict[str, Callable[[int], None]]:
        """Return a function of each contestant for a number of evaluations."""
        unary = {f"unary, {n} thread{'s' * (n > 1)}": self._unary(n) for n in _THREADS}
        return {
            **unary,
            "many, ordered": self._many,
            "many, as they come": self._many_as_they_come,
            "many, asyncio": lambda count: asyncio.run(self._many_asyncio(count)),
        }

    def sample(self, run: Callable[[int], None], count: int) -> ManySample:
        """Time one turn."""
        began, client, server = time.perf_counter(), time.process_time(), self._server.cpu_s()
        run(count)
        seconds = time.perf_counter() - began
        used = (time.process_time() - client, self._server.cpu_s() - server)
        return ManySample(seconds / count, used[0] / count, used[1] / count)

    def _evaluate(self, item: Item) -> NDArray[Any]:
        return self._client.evaluate(item.op, item.array, output_shape=item.output_shape)

    def _unary(self, threads: int) -> Callable[[int], None]:
        def work(count: int) -> None:
            for number, item in self._numbered(count):
                self._check(number, self._evaluate(item))

        def run(count: int) -> None:
            with ThreadPoolExecutor(threads) as pool:
                for done in pool.map(work, repeat(count // threads, threads)):
                    assert done is None

        return run

    def _many(self, count: int) -> None:
        items = (item for _, item in self._numbered(count))
        for number, result in enumerate(self._client.evaluate_many(items)):
            self._check(number, result)

    def _many_as_they_come(self, count: int) -> None:
        items = (item for _, item in self._numbered(count))
        for number, result in self._client.evaluate_many(items, ordered=False):
            self._check(number, result)

    async def _many_asyncio(self, count: int) -> None:
        items = (item for _, item in self._numbered(count))
        async with AsyncClient(self._server.address) as client:
            number = 0
            async for result in client.evaluate_many(items):
                self._check(number, result)
                number += 1

    def _numbered(self, count: int) -> Iterator[tuple[int, Item]]:
        for number in range(count):
            yield number, self._items[number % len(self._items)]

    def _check(self, number: int, result: NDArray[Any]) -> None:
        if number % 64 == 0 and result.tobytes() != self._wanted[number % len(self._wanted)]:
            raise AssertionError(f"evaluation {number} has other bits than the first time")


def _measure(
    tested: ManyContestants, *, rounds: int, seconds: float
) -> list[dict[str, ManySample]]:
    contestants = tested.contestants()
    counts: dict[str, int] = {}
    for name, run in contestants.items():
        tested.sample(run, 320)
        counts[name] = max(320, int(seconds / tested.sample(run, 640).seconds))
    measured: list[dict[str, ManySample]] = []
    for number in range(rounds):
        order = list(contestants)[:: 1 if number % 2 else -1]
        measured.append({name: tested.sample(contestants[name], counts[name]) for name in order})
    return measured


def _summary(rounds: list[dict[str, ManySample]]) -> dict[str, dict[str, float]]:
    fastest_unary = [
        min(sample.seconds for name, sample in one.items() if name.startswith("unary"))
        for one in rounds
    ]
    summary: dict[str, dict[str, float]] = {}
    for name in rounds[0]:
        taken = [one[name] for one in rounds]
        pairs = zip(fastest_unary, taken, strict=True)
        summary[name] = {
            "per_s": round(1 / statistics.median(one.seconds for one in taken)),
            "to_unary": round(statistics.median(unary / one.seconds for unary, one in pairs), 2),
            "client_us": round(statistics.median(one.client_s for one in taken) * 1e6),
            "server_us": round(statistics.median(one.server_s for one in taken) * 1e6),
        }
    return summary


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("many", __doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args(argv)
    with started(*OURS, "--log-level", "warning") as server:
        tested = ManyContestants(server)
        rounds = _measure(tested, rounds=arguments.rounds, seconds=arguments.seconds)
    summary = _summary(rounds)
    for name, numbers in summary.items():
        sys.stdout.write(
            f"{name:20}{numbers['per_s']:7.0f} /s {numbers['to_unary']:6.2f} x unary"
            f"{numbers['client_us']:6.0f} us client{numbers['server_us']:6.0f} us server\n"
        )
    sys.stdout.write(f"wanted of many: {_WANTED_RATE} /s and {_WANTED_RATIO} x unary\n")
    machine.write(arguments.json, {"rounds": len(rounds), "medians": summary})
    return 0
