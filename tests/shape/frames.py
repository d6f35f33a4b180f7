"""Modules and frames of one call, on the server's side and on the client's.

    python -m shape.frames FLAGS    is gradwire-server, but records its frames

A frame counts whenever it is entered: a coroutine or a generator also each time it is resumed.
Compiled code, numba's kernels included, has no frames. Server and client are two processes, so that
a frame's process tells whose it is. Calls are repeated, since the server also has tasks that run
every few seconds.
"""

from __future__ import annotations

import json
import os
import queue
import runpy
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import IO, NamedTuple

import numpy as np

from gradwire import Client, ops, v1
from support.processes import environment
from support.raw_calls import RawClient, chunk, float32, opening

_READY = "gradwire-server listening on "
# NumPy's, which is there at once: compiled kernels take half a minute where none are kept.
_FLAGS = ("--address", "127.0.0.1:0", "--backend", "numpy_cpu", "--compute-threads", "1")
_REPEATS = 7
_BACKENDS = "gradwire_server.backends"
# After a call its threads still count, and log lines are written together, some 0.1 s later: work
# has ended when no frame came for so long.
_QUIET_S = 0.15
_CHUNK = 1 << 20
# A chunk of the stream is two of its rows, and the gradient of a bilinear enlargement needs two new
# rows for each row of its result: every chunk completes a result.
_ROW = _CHUNK // 2 // 4
_CHUNKS = 8
_MIDDLE = range(2, _CHUNKS - 1)
_RESULT_S = 2.0


class Crossed(NamedTuple):
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

    def median(owner: str) -> int:
        sums = [sum(n for name, n in one.items() if _owner(name) == owner) for one in repeats]
        return round(statistics.median(sums) / calls)

    always = set(repeats[0]).intersection(*repeats)
    modules = sum(_owner(name) != "others" for name in always)
    return Crossed(modules, median("frames"), median("backend"), median("others"))


def _owner(module: str) -> str:
    def within(package: str) -> bool:
        return f"{module}.".startswith(f"{package}.")

    if within(_BACKENDS):
        return "backend"
    product = within("gradwire_server") or (within("gradwire") and not within("gradwire.v1"))
    return "frames" if product else "others"


class Recorder:
    """Notes the modules of the frames that this thread and those started later enter."""

    def __init__(self) -> None:
        self._entered: list[str] = []
        self._recording = False
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and self._recording:
            # Appending is atomic, so that threads need no lock.
            self._entered.append(frame.f_globals.get("__name__", ""))

    def start(self) -> None:
        """Forget what was noted, and note from now on."""
        self._entered, self._recording = [], True

    def settle(self) -> None:
        """Wait until no frame is entered any more."""
        before = -1
        while len(self._entered) != before:
            before = len(self._entered)
            time.sleep(_QUIET_S)

    def stop(self) -> Counter[str]:
        """Stop, and return how many frames of each module were entered."""
        self._recording = False
        return Counter(name for name in self._entered if name != __name__)

    def close(self) -> None:
        """Note nothing any more."""
        self._recording = False
        threading.setprofile(None)
        sys.setprofile(None)


def _obey(recorder: Recorder) -> None:
    """Run the command in each line of the input; the end of the input stops the server."""
    sys.setprofile(None)  # frames of this thread are not the server's
    for line in sys.stdin:
        print(json.dumps(getattr(recorder, line.strip())()), flush=True)  # noqa: T201 - the answer
    os.kill(os.getpid(), signal.SIGTERM)


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
        self.ask("start")
        work()
        self.ask("settle")
        return Counter(json.loads(self.ask("stop")))

    def ask(self, command: str) -> str:
        """Run a command of the recorder there, and return its answer."""
        self._commands.write(f"{command}\n")
        self._commands.flush()
        return self._answers.readline()


@contextmanager
def recorded_server() -> Generator[RecordedServer]:
    with subprocess.Popen(  # noqa: S603 - our own server
        [sys.executable, "-m", "shape.frames", *_FLAGS],
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
    with RawClient(server.address) as client:

        def unary(*sizes: int) -> Crossed:
            found = [server.frames_of(partial(_call, client, size)) for size in sizes]
            return crossed(found[-_REPEATS:])

        repeats = _REPEATS + 2
        return {
            "warm Evaluate of 12 KiB, server": unary(*[16] * repeats),
            "warm Evaluate of 768 KiB, server": unary(*[128] * repeats),
            "cold Evaluate, a new shape, server": unary(*range(17, 17 + _REPEATS)),
            "chunk of 1 MiB of a stream, server": crossed(
                [_one_stream(server, client) for _ in range(_REPEATS)], calls=len(_MIDDLE)
            ),
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


def _call(client: RawClient, size: int) -> None:
    request = _request(size, size)
    request.data = bytes(4 * 3 * 2 * size * 2 * size)
    refusal = client.evaluate(request).refusal
    if refusal is not None:
        raise RuntimeError(f"the call failed: {refusal}")


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
    server.ask("settle")
    entered = server.frames_of(lambda: send(_MIDDLE))
    messages.put(chunk(_MIDDLE.stop * _CHUNK, bytes(_CHUNK)))
    messages.put(None)
    reader.join()
    return entered


def _large(address: str) -> Crossed:
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
    gradient = np.ones((4, 3, 512, 512), np.float32)
    recorder = Recorder()
    found: list[Counter[str]] = []
    try:
        with Client(address) as client:
            for _ in range(_REPEATS + 2):
                recorder.start()
                client.evaluate(operator, gradient, output_shape=(4, 3, 256, 256))
                recorder.settle()
                found.append(recorder.stop())
    finally:
        recorder.close()
    return crossed(found[2:])


if __name__ == "__main__":
    threading.Thread(target=_obey, args=(Recorder(),), daemon=True).start()
    runpy.run_module("gradwire_server", run_name="__main__")
