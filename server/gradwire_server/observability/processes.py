"""CPU, memory and open files of every process of a server, as prometheus_client's collector has it.

The collector reads /proc, so that no process has to tell them itself.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from prometheus_client import ProcessCollector

from gradwire_server.observability.definitions import PROCESSES, PROCESSOR
from gradwire_server.observability.families import Family, Sample
from gradwire_server.observability.ledger import SUPERVISOR, Worker

_CPU = PROCESSOR.name
_START = "process_start_time_seconds"


class Processes:
    """Reads them again and again; remembers the CPU time of those that have ended."""

    def __init__(self) -> None:
        self._cpu: dict[tuple[str, int], float] = {}
        self._cpu_of_ended: dict[str, float] = defaultdict(float)

    def read(self, workers: Sequence[Worker]) -> list[Family]:
        """Return the metrics of the workers' processes, and of this one if it is none of them."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        pids = [(worker.name, pid) for worker in workers for pid in worker.pids]
        if all(pid != os.getpid() for _, pid in pids):
            pids.append((SUPERVISOR, os.getpid()))
        for name, pid in pids:
            for metric, value in _figures(pid).items():
                if metric == _CPU:
                    self._note_cpu(name, pid, value)
                    continue
                # Two while one takes over from another.
                before = found[metric].get(name, 0.0)
                found[metric][name] = max(before, value) if metric == _START else before + value
        for gone in self._cpu.keys() - set(pids):
            self._cpu_of_ended[gone[0]] += self._cpu.pop(gone)
        for name in {name for name, _ in self._cpu} | self._cpu_of_ended.keys():
            running = sum(seconds for (other, _), seconds in self._cpu.items() if other == name)
            found[_CPU][name] = self._cpu_of_ended[name] + running
        return [
            Family(
                metric,
                tuple(Sample((name,), value) for name, value in found[metric.name].items()),
            )
            for metric in PROCESSES
        ]

    def _note_cpu(self, name: str, pid: int, seconds: float) -> None:
        before = self._cpu.get((name, pid), 0.0)
        if seconds < before:
            # Another process of the same number.
            self._cpu_of_ended[name] += before
        self._cpu[name, pid] = seconds


def _figures(pid: int) -> dict[str, float]:
    collected = ProcessCollector(pid=lambda: pid, registry=None).collect()
    return {sample.name: sample.value for metric in collected for sample in metric.samples}
