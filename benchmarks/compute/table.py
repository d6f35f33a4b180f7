"""LocalClient's backends against PyTorch, oneDNN and a copy loop.

    python -m benchmarks compute [--quick] [--case PATTERN] [--json FILE] ...

A row is one of our backends on a case in one layout: GB/s counts the bytes of output gradient and
input gradient; /copy, /torchNCX and so on say how many times as fast it is, as medians over paired
rounds. NCX is contiguous, NXC is channels-last: peers run in both, natively, so /same is the ratio
to the fastest peer that was given the row's layout and /any to the fastest in any. Results are
compared first: of two of our backends bit for bit, with peers within the rounding of their weights.
A peer that differs gets no ratio. Without the group `peers` it runs the available contestants and
names the missing ones. Ends with status 1 if two of our backends differ.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial

from benchmarks import machine
from benchmarks.compute import native, report
from benchmarks.compute.cases import CASES, DTYPES, Array, Case, Layout, Outputs, gradients
from benchmarks.compute.contestants import (
    Contestant,
    Gradient,
    check_ours,
    copy_loop,
    differing,
    onednn_peer,
    ours,
    torch_peer,
)
from benchmarks.compute.native import Libraries, UnavailableError
from benchmarks.rounds import Pace, samples, timed
from gradwire_server import LocalClient

_QUICK = Pace(rounds=3, budget_s=0.1)
# Longer than OpenMP's threads wait in a loop for more work.
_SETTLE_S = 0.03


class Bench:
    """Measures cases; keeps clients and compiled helpers between them.

    backends  ours, the main one first
    without   kind of contestant to leave out
    """

    def __init__(
        self, backends: Sequence[str], pace: Pace, libraries: Libraries, *, without: str = ""
    ) -> None:
        self._pace = pace
        self._libraries = libraries
        self._without = without
        self._outputs = Outputs()
        self._clients: dict[tuple[str, int], LocalClient] = {}
        self.missing = dict(libraries.missing)
        self.backends = [name for name in backends if self._runs(name)]

    def measure(
        self, case: Case, dtype: str, x: dict[Layout, Array], threads: int
    ) -> report.ComputeRecord:
        """Run every contestant of a case in turn."""
        skipped: dict[str, str] = {}
        with ExitStack() as stack:
            contestants: list[Contestant] = []
            for name, build in self._builders(case, x, threads):
                try:
                    one = build()
                except UnavailableError as error:
                    skipped[name] = str(error)
                    continue
                stack.callback(one.close)
                contestants.append(one)
            first = {one.name: timed(one.run) for one in contestants}
            own = [one for one in contestants if one.name.split()[0] in self.backends]
            peers = [one for one in contestants if one not in own]
            skipped.update(differing(peers, check_ours(own)))
            contestants = [one for one in contestants if one.name not in skipped]
            seconds = samples(contestants, first, self._pace_of(threads))
            notes = {one.name: one.note for one in contestants}
        nbytes = case.elements() * DTYPES[dtype].itemsize
        sizes = (list(case.src), list(case.dst))
        return report.ComputeRecord(
            case.name, case.kind, *sizes, dtype, nbytes, seconds, notes, skipped, threads
        )

    def close(self) -> None:
        """End the threads of our clients."""
        for client in self._clients.values():
            client.close()

    def _builders(
        self, case: Case, x: dict[Layout, Array], threads: int
    ) -> list[tuple[str, Callable[[], Contestant]]]:
        builders: list[tuple[str, Callable[[], Contestant]]] = []
        for layout, array in x.items():
            given = Gradient(case, layout, array, threads, self._outputs)
            for backend in self.backends:
                client = self._client(backend, threads)
                builders.append((f"{backend} {layout}", partial(ours, given, client, backend)))
            builders.append((f"torch {layout}", partial(torch_peer, given)))
            builders.append((f"onednn {layout}", partial(onednn_peer, given, self._libraries)))
        given = Gradient(case, "NCX", x["NCX"], threads, self._outputs)
        builders.append(("copy", partial(copy_loop, given, self._libraries)))
        return [one for one in builders if one[0].split()[0] != self._without]

    def _client(self, backend: str, threads: int) -> LocalClient:
        key = (backend, threads)
        if key not in self._clients:
            self._clients[key] = LocalClient(backend, threads)
        return self._clients[key]

    def _runs(self, backend: str) -> bool:
        try:
            self._client(backend, 1)
        except ValueError as error:
            self.missing[backend] = str(error)
            return False
        return True

    def _pace_of(self, threads: int) -> Pace:
        return replace(self._pace, settle_s=_SETTLE_S if threads > 1 else 0.0)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = machine.parser("compute", __doc__)
    parser.add_argument("--backends", default="numba_cpu,numpy_cpu", help="ours; the first is it")
    parser.add_argument("--case", default="*", help="name of a case, with * for any text")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=Pace().rounds)
    parser.add_argument("--quick", action="store_true", help="3 short rounds, for a first look")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    arguments = _arguments(argv)
    pace = _QUICK if arguments.quick else Pace(rounds=arguments.rounds)
    bench = Bench(arguments.backends.split(","), pace, native.load())
    for name, reason in bench.missing.items():
        sys.stdout.write(f"without {name}: {reason}\n")
    started = machine.facts()
    sys.stdout.write(
        f"on {started['cpu']}, load {started['load']:.1f} of {started['cores']} cores\n"
    )
    sys.stdout.write(report.HEADER + "\n")
    records: list[report.ComputeRecord] = []
    for case in CASES:
        if not fnmatch.fnmatch(case.name, arguments.case):
            continue
        for dtype in arguments.dtypes.split(","):
            x = gradients(case, DTYPES[dtype])
            for threads in map(int, arguments.threads.split(",")):
                records.append(bench.measure(case, dtype, x, threads))
                for backend in bench.backends:
                    for row in report.rows(records[-1], backend):
                        sys.stdout.write(report.line(row) + "\n")
                sys.stdout.flush()
    bench.close()
    found = {"missing": bench.missing, "records": [asdict(one) for one in records]}
    machine.write(arguments.json, {"machine": started, **found})
    return 0
