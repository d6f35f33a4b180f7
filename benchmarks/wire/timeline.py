"""Timeline of one stream: sending, computing and receiving.

Both ends record times of the same clock: the client for every chunk that grpc took from it or gave
to it, and the server, started by this module, for every stay in a phase.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.servers import OURS
from benchmarks.wire import loads
from benchmarks.wire.rounds import CHUNK, LARGE, LARGE_RESULT, numbers, start
from gradwire import ops, tensors, v1
from gradwire._wire.framing import chunk_frame, read_chunk
from gradwire_server import command
from gradwire_server.observability import definitions, recording

_COLUMNS = 64
_WARM = 5

Stay = tuple[float, float]


def timeline(rounds: int) -> str:
    """Stream repeatedly and draw the quickest of the last streams."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        log = folder / "stays"
        server = start(stack, "-m", "benchmarks.wire.timeline", str(log), *OURS[2:])
        call = _stamped(server.address)
        runs = [call() for _ in range(_WARM + rounds)]
        time.sleep(0.2)
        computed = _stays(log, "compute")
    up, down = min(runs[_WARM:], key=lambda run: run[1][-1] - run[0][0])
    first, last = up[0], down[-1]
    inside = [(a, b) for a, b in computed if a >= first and b <= last]
    return _drawn(first, last, up, inside, down)


def _stamped(address: str) -> Any:
    source = numbers(LARGE)
    method = loads.method_of(address, loads.EVALUATE_STREAM)
    data = source.reshape(-1).view(np.uint8).data
    described = tensors.describe(source)
    result = tensors.result_descriptor(described, LARGE_RESULT)
    operator = ops.to_message(loads.OPERATOR)
    header = v1.Open(operator=operator, input=described, output=result)
    opening = v1.EvaluateStreamRequest(open=header).SerializeToString()

    def call() -> tuple[list[float], list[float]]:
        sent: list[float] = []

        def messages() -> Iterator[bytes]:
            yield opening
            for at in range(0, len(data), CHUNK):
                sent.append(time.perf_counter())
                yield chunk_frame(at, data[at : at + CHUNK])

        came = [(time.perf_counter(), message) for message in method(messages())]
        return sent, [at for at, message in came if read_chunk(message) is not None]

    return call


def _drawn(
    first: float, last: float, up: Sequence[float], steps: Sequence[Stay], down: Sequence[float]
) -> str:
    span = last - first

    def column(at: float) -> int:
        return min(_COLUMNS - 1, int((at - first) / span * _COLUMNS))

    def row(name: str, marked: Iterable[int]) -> str:
        taken = set(marked)
        return f"{name:10}{''.join('#' if each in taken else '.' for each in range(_COLUMNS))}"

    working = {each for a, b in steps for each in range(column(a), column(b) + 1)}
    busy = sum(b - a for a, b in steps)
    beside = sum(b - a for a, b in steps if a < up[-1])
    lines = [
        f"{1e3 * span:.1f} ms from the first chunk sent to the last received, {_COLUMNS} columns",
        row("sent", map(column, up)),
        row("computing", working),
        row("received", map(column, down)),
        f"computing took {1e3 * busy:.1f} ms: {100 * beside / busy:.0f} % before all was sent",
        f"chunks received before all was sent: {100 * _before(down, up[-1]):.0f} %",
    ]
    return "\n".join(lines) + "\n"


def _before(stamps: Sequence[float], end: float) -> float:
    return sum(each < end for each in stamps) / len(stamps)


def _stays(log: Path, phase: str) -> list[Stay]:
    lines = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    return [(float(began), float(ended)) for name, began, ended in lines if name == phase]


def _serve(log: Path) -> None:
    """Run the server, with every phase recorded in a file."""
    told = log.open("w", encoding="utf-8", buffering=1)
    note = recording.Phases.note

    def telling(
        self: recording.Phases, phase: definitions.Phase, began: float, ended: float
    ) -> None:
        told.write(f"{phase} {began!r} {ended!r}\n")
        note(self, phase, began, ended)

    recording.Phases.note = telling  # type: ignore[method-assign]
    command.main()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    arguments, sys.argv[1:] = parser.parse_known_args()
    _serve(arguments.log)
