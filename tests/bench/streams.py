"""Throughput of EvaluateStream against a bare protobuf bidi server, in one run.

    python tests/bench/streams.py [--rounds N] [--json FILE]

One client, the generated stub, drives both servers in turn: 64 MiB up in 1 MiB chunks. The operator
`copy` has no axes to work on, so it returns as many bytes; `bilinear` is the x2 gradient on the
server's backend, which returns a quarter. A throughput is the bytes of both directions over the
time from the first message to the last; ratios are of the two runs of a round, and the medians of
the rounds are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from gradwire import Client, ops, tensors, v1

_CHUNK = 1 << 20
_OPTIONS = [("grpc.max_receive_message_length", 16 << 20)]
_SHAPE = (1, 1, 4096, 4096)
_COPY = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
_HALF = (1, 1, 2048, 2048)


def _start(*command: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(  # noqa: S603 - our own servers
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def _requests(data: memoryview, output: tuple[int, ...]) -> Iterator[v1.EvaluateStreamRequest]:
    source = v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=_SHAPE)
    result = v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=output)
    header = v1.Open(operator=ops.to_message(_COPY), input=source, output=result)
    yield v1.EvaluateStreamRequest(open=header)
    for offset in range(0, len(data), _CHUNK):
        chunk = v1.Chunk(offset=offset, data=bytes(data[offset : offset + _CHUNK]))
        yield v1.EvaluateStreamRequest(chunk=chunk)


def _drive(stub: v1.GradientServiceStub, data: memoryview, output: tuple[int, ...]) -> float:
    """Return bytes of both directions per second."""
    received = 0
    started = time.perf_counter()
    for message in stub.EvaluateStream(_requests(data, output)):
        received += len(message.chunk.data)
    return (len(data) + received) / (time.perf_counter() - started)


def _drive_sdk(client: Client, array: np.ndarray[Any, Any]) -> float:
    started = time.perf_counter()
    result = client.evaluate(_COPY, array, output_shape=_SHAPE)
    return (array.nbytes + result.nbytes) / (time.perf_counter() - started)


def _measure(bare: str, ours: str, rounds: int) -> dict[str, Any]:
    array = np.random.default_rng(0).normal(size=_SHAPE).astype(np.float32)
    data = tensors.WireView(array).read(0, array.nbytes)
    with (
        grpc.insecure_channel(bare, _OPTIONS) as bare_channel,
        grpc.insecure_channel(ours, _OPTIONS) as our_channel,
        Client(ours) as client,
    ):
        peer, stub = v1.GradientServiceStub(bare_channel), v1.GradientServiceStub(our_channel)
        kinds: dict[str, Callable[[], float]] = {
            "bare": lambda: _drive(peer, data, _SHAPE),
            "copy": lambda: _drive(stub, data, _SHAPE),
            "bilinear": lambda: _drive(stub, data, _HALF),
            "sdk_copy": lambda: _drive_sdk(client, array),
        }
        for drive in kinds.values():
            drive()
        runs = [{name: drive() for name, drive in kinds.items()} for _ in range(rounds)]
    median = {name: statistics.median(run[name] for run in runs) for name in kinds}
    ratio = {name: statistics.median(run[name] / run["bare"] for run in runs) for name in kinds}
    return {
        "rounds": rounds,
        "megabytes_per_s": {name: round(value / 1e6) for name, value in median.items()},
        "ratio_to_bare": {name: round(value, 2) for name, value in ratio.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    bare, bare_address = _start(str(Path(__file__).with_name("bare_server.py")))
    ours, our_address = _start("-m", "gradwire_server", "--address", "127.0.0.1:0")
    try:
        facts = _measure(bare_address, our_address, arguments.rounds)
    finally:
        for process in (bare, ours):
            process.terminate()
            process.wait()
    text = json.dumps(facts, indent=2)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
