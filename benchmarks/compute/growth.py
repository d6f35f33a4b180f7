"""Cost of a gradient by its size, 1 KiB to 4 GiB.

    python -m benchmarks compute-growth [--largest MIB] [--json FILE] ...

One float32 plane, the gradient of a bilinear x2 enlargement: the output gradient has from 16 x 16
to 32768 x 32768 elements. Prints microseconds per call and GB/s of our backend, of PyTorch and of
the copy loop, in turn, each with 1 thread and with 2. The largest size takes 12 GiB of memory.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict

from benchmarks import machine
from benchmarks.compute import native, report
from benchmarks.compute.cases import DTYPES, Case, gradients
from benchmarks.compute.table import Bench
from benchmarks.rounds import Pace

_SMALLEST_SIDE = 16
_PACE = Pace(rounds=5, budget_s=2.0)


def sizes(largest_mib: int) -> list[Case]:
    """Return one plane after another, each four times as large."""
    cases: list[Case] = []
    side = _SMALLEST_SIDE
    while 4 * side * side <= largest_mib << 20:
        half = side // 2
        cases.append(Case(f"{side} x {side}", "linear", (1, 1, half, half), (1, 1, side, side)))
        side *= 2
    return cases


def _line(record: report.ComputeRecord) -> str:
    cells = [f"{record.case:>15} {record.threads:>7}"]
    for name, times in record.seconds.items():
        took = statistics.median(times) * 1e6
        cells.append(f"{name:>14}: {took:>12.1f} us {record.rate(name) or 0:6.2f} GB/s")
    return "".join(cells)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("compute-growth", __doc__)
    parser.add_argument("--backend", default="numba_cpu")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--largest", type=int, default=4096, metavar="MIB")
    arguments = parser.parse_args(argv)
    bench = Bench([arguments.backend], _PACE, native.load(), without="onednn")
    for name, reason in bench.missing.items():
        sys.stdout.write(f"without {name}: {reason}\n")
    records: list[report.ComputeRecord] = []
    for case in sizes(arguments.largest):
        x = gradients(case, DTYPES["float32"], layouts=("NCX",))
        for threads in map(int, arguments.threads.split(",")):
            records.append(bench.measure(case, "float32", x, threads))
            sys.stdout.write(_line(records[-1]) + "\n")
            sys.stdout.flush()
    bench.close()
    machine.write(arguments.json, {"records": [asdict(one) for one in records]})
    return 0
