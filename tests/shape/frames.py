"""Modules and frames of one call, on the server's side and on the client's.

Server and client are two processes, so that a frame's process tells whose it is. Calls are
repeated, since the server also has tasks that run every few seconds.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import numpy as np

from gradwire import Client, ops, v1
from shape.recording import Recorder
from support.processes import environment
from support.raw_calls import RawClient, chunk, float32, opening

_READY = "gradwire-server listening on "
# NumPy's, which is there at once: compiled kernels take half a minute where none are kept.
_FLAGS = ("--address", "127.0.0.1:0", "--backend", "numpy_cpu", "--compute-threads", "1")
_REPEATS = 7
_BACKENDS = "gradwire_server.backends"
_CHUNK = 1 << 20
# A chunk of the stream is two of its rows, and the gradient of a bilinear enlargement needs two new
# rows for each row of its result: every chunk completes a result.
_ROW = _CHUNK // 2 // 4
_CHUNKS = 8
_MIDDLE = range(2, _CHUNKS - 1)
_RESULT_S = 2.0


@dataclass(frozen=True, slots=True)
class Crossed:
    """What one call crossed.

    modules  distinct modules of gradwire and gradwire_server, without the generated gradwire.v1
    frames   frames of those modules, without the backend's
    backend  frames of gradwire_server.backends
    others   frames of all other modules: gradwire.v1, the standard library, grpc, NumPy
    """

    modules: int
    frames: int
    backend: int
    others: int


def crossed(repeats: list[Counter[str]], *, calls: int = 1) -> Crossed:
    """Divide the frames that so many calls entered, in each repeat, by whose they are.

    Modules are those of every repeat, frames the median of repeats for one call.
    """

    def median(*, ours: bool, backend: bool) -> int:
        sums = [
            sum(
                count
                for name, count in entered.items()
                if (_is_ours(name), _is_in(name, _BACKENDS)) == (ours, backend)
            )
            for entered in repeats
        ]
        return round(statistics.median(sums) / calls)

    always = set(repeats[0]).intersection(*repeats)
    return Crossed(
        sum(map(_is_ours, always)),
        median(ours=True, backend=False),
        median(ours=True, backend=True),
        median(ours=False, backend=False),
    )


def _is_ours(module: str) -> bool:
    product = _is_in(module, "gradwire") or _is_in(module, "gradwire_server")
    return product and not _is_in(module, "gradwire.v1")


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


class RecordedServer:
    """A server in a process of its own that records its frames.

    address  HOST:PORT
    """

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self._commands, self._answers = commands, answers
        line = answers.readline()
        if not line.startswith(_READY):
            raise RuntimeError(f"the server did not start: {line!r}")
        self.address = line.removeprefix(_READY).strip()

    def frames_of(self, work: Callable[[], object]) -> Counter[str]:
        """Return the frames of each module entered while work runs and until nothing follows."""
        self._ask("start")
        work()
        self.settle()
        return Counter(json.loads(self._ask("stop")))

    def settle(self) -> None:
        """Wait until the server waits."""
        self._ask("settle")

    def _ask(self, command: str) -> str:
        self._commands.write(f"{command}\n")
        self._commands.flush()
        return self._answers.readline()


@contextmanager
def recorded_server() -> Generator[RecordedServer]:
    """Run a server that records."""
    with subprocess.Popen(  # noqa: S603 - our own server
        [sys.executable, "-m", "shape.recorded_server", *_FLAGS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield RecordedServer(process.stdin, process.stdout)


def measure(server: RecordedServer) -> dict[str, Crossed]:
    """Return what each kind of call crosses."""
    with RawClient(server.address) as client:
        return {
            "warm Evaluate of 12 KiB, server": _warm(server, client, size=16),
            "warm Evaluate of 768 KiB, server": _warm(server, client, size=128),
            "cold Evaluate, a new shape, server": _cold(server, client),
            "chunk of 1 MiB of a stream, server": _streamed(server, client),
            "Client.evaluate of 12 MiB, client": _large(server.address),
        }


def _request(rows: int, columns: int, *, channels: int = 3) -> v1.EvaluateRequest:
    """Ask for the gradient of a bilinear enlargement to twice these rows and columns."""
    interpolate = v1.Interpolate(
        mode=v1.Interpolate.MODE_BILINEAR, data_format=v1.Interpolate.DATA_FORMAT_NCX
    )
    return v1.EvaluateRequest(
        request_id="a request",
        operator=v1.Operator(interpolate_backward=interpolate),
        input=float32(1, channels, 2 * rows, 2 * columns),
        output=float32(1, channels, rows, columns),
    )


def _unary(server: RecordedServer, client: RawClient, *, size: int) -> Counter[str]:
    request = _request(size, size)
    request.data = bytes(4 * 3 * 2 * size * 2 * size)

    def call() -> None:
        refusal = client.evaluate(request).refusal
        if refusal is not None:
            raise RuntimeError(f"the call failed: {refusal}")

    return server.frames_of(call)


def _warm(server: RecordedServer, client: RawClient, *, size: int) -> Crossed:
    return crossed([_unary(server, client, size=size) for _ in range(_REPEATS + 2)][2:])


def _cold(server: RecordedServer, client: RawClient) -> Crossed:
    sizes = range(17, 17 + _REPEATS)
    return crossed([_unary(server, client, size=size) for size in sizes])


def _streamed(server: RecordedServer, client: RawClient) -> Crossed:
    repeats = [_one_stream(server, client) for _ in range(_REPEATS)]
    return crossed(repeats, calls=len(_MIDDLE))


def _one_stream(server: RecordedServer, client: RawClient) -> Counter[str]:
    """Record chunks in the middle of a stream; each is sent when the one before is done."""
    messages: queue.Queue[v1.EvaluateStreamRequest | None] = queue.Queue()
    results: queue.Queue[v1.EvaluateStreamResponse] = queue.Queue()
    call = client.start(iter(messages.get, None))

    def read() -> None:
        for message in call:
            if message.WhichOneof("message") == "chunk":
                results.put(message)

    def send(numbers: range) -> None:
        for number in numbers:
            messages.put(chunk(number * _CHUNK, bytes(_CHUNK)))
            with suppress(queue.Empty):  # where results are cut in another way than chunks
                results.get(timeout=_RESULT_S)

    reader = threading.Thread(target=read)
    reader.start()
    messages.put(opening(_request(_CHUNKS, _ROW // 2, channels=1)))
    messages.put(chunk(0, bytes(_CHUNK)))  # the first result needs the second chunk, too
    send(range(1, _MIDDLE.start))
    server.settle()
    entered = server.frames_of(lambda: send(_MIDDLE))
    messages.put(chunk(_MIDDLE.stop * _CHUNK, bytes(_CHUNK)))
    messages.put(None)
    reader.join()
    return entered


def _large(address: str) -> Crossed:
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
    gradient = np.ones((4, 3, 512, 512), np.float32)
    recorder = Recorder()
    try:
        with Client(address) as client:
            return crossed(list(_large_calls(recorder, client, operator, gradient)))
    finally:
        recorder.close()


def _large_calls(
    recorder: Recorder, client: Client, operator: ops.Operator, gradient: np.ndarray
) -> Iterator[Counter[str]]:
    for number in range(_REPEATS + 2):
        recorder.start()
        client.evaluate(operator, gradient, output_shape=(4, 3, 256, 256))
        recorder.settle()
        entered = recorder.stop()
        if number >= 2:
            yield entered
