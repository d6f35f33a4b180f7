"""CUDA kernels against a device copy and PyTorch's CUDA kernels.

    python -m benchmarks gpu [--quick] [--json FILE] ...

A row is one gradient in one layout and type on tensors of several times the device's cache. Times
are the device's own, by events, medians of paired rounds after a warm-up; GB/s counts the bytes of
output gradient and input gradient; /copy, /torch and /determ. say how many times as fast ours is as
a copy of as many bytes, as PyTorch's kernel in the same layout, and as its deterministic path.
Results are compared first: ours with NumPy to the bit, PyTorch's within rounding; a contestant with
another result gets no ratio. Then calls from host memory to host memory, on the GPU and on the CPU,
in this process and of servers over loopback: bus and wire bound them, and the least size from which
the GPU is faster is printed. NCX is contiguous, NXC is channels_last.

Missing contestants are named and left out. Only a device is required; --device sim simulates one on
tiny tensors, to show that the benchmark runs. Ends with status 1 if bits differ or a row fails, and
with 2 without a device. Missed targets are printed and are no error.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.compute.cases import Array
from benchmarks.compute.native import UnavailableError
from benchmarks.gpu import report
from benchmarks.gpu.cases import GpuRow, Numbers
from benchmarks.gpu.contestants import (
    GpuContestant,
    check,
    copy,
    ours,
    torch_backward,
    torch_deterministic,
)
from benchmarks.gpu.costs import Cost, lines
from benchmarks.gpu.machines import Machine, RealMachine, SimulatedMachine
from benchmarks.gpu.report import GpuRecord
from benchmarks.gpu.streams import DeviceStream
from gradwire_server.plans import Plan

# Share of the time that is reserved for measurements after the kernels.
_FOR_COSTS = 0.3
# A lost device breaks every following row.
_MOST_BROKEN = 3


@dataclass(frozen=True, slots=True)
class GpuPace:
    """How long to measure.

    rounds    of all contestants
    warm      untimed runs of each one before
    ramp_s    time that the device copies first, so that its clocks have risen
    ahead     copies queued next, which keep the device busy until the rounds are queued
    budget_s  a slow contestant takes part in as many rounds as fit in so long, twice at least
    """

    rounds: int = 25
    warm: int = 3
    ramp_s: float = 0.2
    ahead: int = 10
    budget_s: float = 0.5


def samples(
    stream: DeviceStream, contestants: Sequence[GpuContestant], pace: GpuPace
) -> dict[str, list[float]]:
    """Return seconds of each run, [contestant][round].

    The order is reversed from round to round. Slow contestants miss the later rounds.
    """
    most = {one.name: _rounds(stream, one, pace) for one in contestants}
    marks: dict[str, list[tuple[Any, Any]]] = {one.name: [] for one in contestants}
    for one in contestants:
        if one.name == "copy":
            _ramp(stream, one, pace)
    for number in range(pace.rounds):
        for one in contestants if number % 2 else contestants[::-1]:
            if number < most[one.name]:
                first = stream.mark()
                one.run()
                marks[one.name].append((first, stream.mark()))
    stream.settle()
    return {name: [stream.seconds(*pair) for pair in pairs] for name, pairs in marks.items()}


def _ramp(stream: DeviceStream, copy: GpuContestant, pace: GpuPace) -> None:
    """Copy until the clocks have risen; leave some copies behind."""
    busy_s = 0.0
    while busy_s < pace.ramp_s:
        first = stream.mark()
        for _ in range(pace.ahead):
            copy.run()
        last = stream.mark()
        stream.settle()
        busy_s += stream.seconds(first, last)
    for _ in range(pace.ahead):
        copy.run()


def _rounds(stream: DeviceStream, one: GpuContestant, pace: GpuPace) -> int:
    """Warm up; return a useful number of rounds for one contestant."""
    one.run()  # the first call may set up more than memory
    times: list[float] = []
    for _ in range(pace.warm):
        first = stream.mark()
        one.run()
        last = stream.mark()
        stream.settle()
        times.append(stream.seconds(first, last))
        if times[-1] > pace.budget_s:
            break
    slowest = max(statistics.median(times), 1e-9)
    return max(2, min(pace.rounds, int(pace.budget_s / slowest)))


@dataclass
class Run:
    """Settings of a run, and its results.

    seconds  after which rows are left out
    case     names of cases, with * for any text
    clocks   MHz of the device at the end of each row, where they can be read
    broken   rows with wrong bits, and rows that raised unexpected errors
    """

    machine: Machine
    stream: DeviceStream
    pace: GpuPace
    seconds: float
    case: str = "*"
    records: list[GpuRecord] = field(default_factory=list[GpuRecord])
    costs: list[Cost] = field(default_factory=list[Cost])
    clocks: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    broken: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    def kernels(self) -> Iterator[GpuRecord]:
        """Measure all rows while time is left."""
        self.stream.load()
        rows = [row for row in self.machine.rows() if fnmatch.fnmatch(row.case.name, self.case)]
        numbers = Numbers()
        for number, row in enumerate(rows):
            if self._is_late(_FOR_COSTS) or len(self.broken) >= _MOST_BROKEN:
                self.machine.missing["rows"] = f"{len(rows) - number} of {len(rows)}: no time left"
                return
            name = f"{row.case.name}, {row.dtype} {row.layout}"
            try:
                self.records.append(_measured(self.stream, row, numbers, self.pace))
            except MemoryError as error:
                self.machine.missing[name] = _short(error)
            except Exception as error:  # noqa: BLE001 - the other rows are worth having
                self.broken.append(f"{name}: {type(error).__name__}: {_short(error)}")
            else:
                self.clocks[f"{name} {len(self.records)}"] = self.stream.clocks()
                yield self.records[-1]
            gc.collect()  # the device's memory is freed with the objects that refer to it

    def from_host_memory(self) -> None:
        """Measure whole calls while time is left."""
        try:
            for cost in self.machine.costs():
                self.costs.append(cost)
                if self._is_late(0):
                    self.machine.missing["sizes"] = "those that are not here: no time left"
                    return
        except Exception as error:  # noqa: BLE001 - what was found before is worth having
            self.broken.append(f"calls from host memory: {type(error).__name__}: {_short(error)}")

    def write(self, path: Path, more: dict[str, object]) -> None:
        """Write all results to a JSON file."""
        found = {
            **more,
            **self.stream.facts,
            "missing": self.machine.missing,
            "clocks_mhz": self.clocks,
            "broken": self.broken,
            "records": [asdict(one) for one in self.records],
            "costs": [asdict(one) for one in self.costs],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found) + "\n", encoding="utf-8")

    def _is_late(self, share: float) -> bool:
        """Whether at most a share of the time is left."""
        return self._until - time.monotonic() <= share * self.seconds


def _measured(stream: DeviceStream, row: GpuRow, numbers: Numbers, pace: GpuPace) -> GpuRecord:
    """Run every contestant of a row in turn.

    Raises WrongResultError if ours is wrong.
    """
    x, plan = numbers.filled(row.shapes[0], row.dtype), row.plan
    contestants, skipped = _contestants(stream, row, plan, x)
    skipped |= check(row, x, contestants)
    contestants = [one for one in contestants if one.name not in skipped]
    seconds = samples(stream, contestants, pace)
    notes = {one.name: one.note for one in contestants}
    case = row.case
    sizes = (list(case.src), list(case.dst))
    return GpuRecord(
        case.name, case.kind, *sizes, row.dtype, row.nbytes, seconds, notes, skipped, row.layout
    )


def _contestants(
    stream: DeviceStream, row: GpuRow, plan: Plan, x: Array
) -> tuple[list[GpuContestant], dict[str, str]]:
    """Return usable contestants, and why others cannot run.

    Each returned contestant has run once.
    """
    found = [ours(stream, row, plan, x), copy(stream, row)]
    found[0].run()
    skipped: dict[str, str] = {}
    for name, build in (
        ("torch", torch_backward),
        ("deterministic", torch_deterministic),
    ):
        try:
            one = build(stream, row, x)
            one.run()
            stream.settle()
        except (UnavailableError, RuntimeError) as error:  # also PyTorch's lack of memory
            skipped[name] = _short(error)
        else:
            found.append(one)
    return found, skipped


def _short(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = machine.parser("gpu", __doc__)
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="only what the targets name")
    parser.add_argument("--case", default="*", help="name of a case, with * for any text")
    parser.add_argument("--mib", type=int, default=1024, help="that a row moves, at least")
    parser.add_argument("--largest-request-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=GpuPace().rounds)
    parser.add_argument("--seconds", type=float, default=400, help="after which rows are left out")
    parser.add_argument("--no-requests", action="store_true", help="only rows of kernels")
    return parser.parse_args(argv)


def _machine(arguments: argparse.Namespace) -> Machine:
    if arguments.device == "sim":
        return SimulatedMachine()
    return RealMachine(
        nbytes=arguments.mib << 20,
        quick=arguments.quick,
        largest=arguments.largest_request_mib << 20,
    )


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    arguments = _arguments(argv)
    try:
        chosen = _machine(arguments)
        stream = chosen.stream()
    except (ImportError, RuntimeError) as error:
        _print(f"no device: {' '.join(str(error).split())}")
        return 2
    started = machine.facts()
    pace = GpuPace(rounds=arguments.rounds)
    run = Run(chosen, stream, pace, arguments.seconds, arguments.case)
    keep = partial(run.write, arguments.json, started) if arguments.json else int
    _print(json.dumps(stream.facts), report.HEADER)
    for record in run.kernels():
        _print(report.line(record))
    keep()
    _print("", *report.summary(run.records))
    if not arguments.no_requests:
        run.from_host_memory()
    for way in dict.fromkeys(cost.way for cost in run.costs):
        _print("", *lines([cost for cost in run.costs if cost.way == way]))
    _print("", *_reasons(run))
    keep()
    return int(bool(run.broken))


def _reasons(run: Run) -> Iterator[str]:
    """Yield missing parts, skipped contestants and broken rows.

    A reason for which contestants took no part comes once.
    """
    for name, reason in run.machine.missing.items():
        yield f"without {name}: {reason}"
    seen = [one for record in run.records for one in record.skipped.items()]
    for name, reason in dict.fromkeys(seen):
        yield f"without {name} in {seen.count((name, reason))} rows: {reason}"
    for one in run.broken:
        yield f"BROKEN {one}"


def _print(*lines: str) -> None:
    for one in lines:
        sys.stdout.write(one + "\n")
    sys.stdout.flush()
