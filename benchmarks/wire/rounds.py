"""Rounds of the wire benchmark: contestants in turn, compared per round.

In each round the order is reversed. Ratios are of the samples of a round; medians of the rounds are
reported.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from benchmarks.servers import Server, started
from benchmarks.wire.loads import Array, Call, Sample, one_by_one

TINY, TINY_RESULT = (1, 3, 16, 16), (1, 3, 8, 8)
LARGE, LARGE_RESULT = (8, 64, 112, 112), (8, 64, 56, 56)
# 64 MiB, and the shape from which they are enlarged x2.
STREAMED, STREAMED_RESULT = (1, 1, 4096, 4096), (1, 1, 2048, 2048)
CHUNK = 1 << 20
BARE = ("-m", "benchmarks.wire.bare_server")
# Seconds between loads, in which processors become idle.
_SETTLE_S = 0.05
_COLUMNS = ("rate", "p50_ms", "p99_ms", "server_ms", "client_ms", "rate_ratio", "p50_ratio")

Take = Callable[[], Sample]
Rows = dict[str, dict[str, float]]


def start(stack: ExitStack, *arguments: str, env: Mapping[str, str] | None = None) -> Server:
    """Run a server until the stack closes."""
    return stack.enter_context(started(*arguments, env=env))


def numbers(shape: tuple[int, ...]) -> Array:
    """Make a tensor."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def compare(takes: Mapping[str, Take], *, base: str, rounds: int) -> Rows:
    """Return each contestant's medians, and its ratios to the base."""
    samples = _in_turn(takes, rounds)
    rows: Rows = {}
    for name, taken in samples.items():
        row = {
            field.name: statistics.median(getattr(one, field.name) for one in taken)
            for field in fields(Sample)
        }
        pairs = list(zip(taken, samples[base], strict=True))
        row["rate_ratio"] = statistics.median(one.rate / other.rate for one, other in pairs)
        row["p50_ratio"] = statistics.median(one.p50_ms / other.p50_ms for one, other in pairs)
        rows[name] = {key: round(value, 3) for key, value in row.items()}
    return rows


def compare_calls(
    calls: Mapping[str, Call],
    servers: Mapping[str, Server] | Server,
    *,
    base: str,
    rounds: int,
    seconds: float = 0.4,
) -> Rows:
    """Compare sequential calls of one caller."""
    takes = {
        name: partial(
            one_by_one,
            call,
            servers if isinstance(servers, Server) else servers.get(name),
            seconds=seconds,
        )
        for name, call in calls.items()
    }
    return compare(takes, base=base, rounds=rounds)


def check_equal(calls: Mapping[str, Call]) -> None:
    """Make each call once; check that results are equal."""
    results: list[Any] = [np.asarray(call()) for call in calls.values()]
    assert all(np.array_equal(results[0], one) for one in results[1:])


def print_rows(report: dict[str, Rows]) -> None:
    """Print the rows of a stage, each part under its title."""
    for title, rows in report.items():
        width = max(map(len, rows)) + 2
        heads = "".join(f"{name:>12}" for name in _COLUMNS)
        sys.stdout.write(f"\n{title}\n{'':{width}}{heads}\n")
        for name, row in rows.items():
            cells = "".join(f"{row[column]:12.3f}" for column in _COLUMNS)
            sys.stdout.write(f"{name:{width}}{cells}\n")
    sys.stdout.flush()


def _in_turn(takes: Mapping[str, Take], rounds: int) -> dict[str, list[Sample]]:
    """Return the samples of each contestant, [round]."""
    found: dict[str, list[Sample]] = {name: [] for name in takes}
    for number in range(rounds):
        for name in list(takes)[:: 1 if number % 2 else -1]:
            time.sleep(_SETTLE_S)
            found[name].append(takes[name]())
    return found
