"""Kinds of calls of the overload benchmark.

- short     4 bytes there, 16 KiB back, 1024 x 1024 elements: computing, some 0.1 ms
- ms        4 bytes there, 16 KiB back, 4096 x 4096 elements: computing, about a millisecond
- work      the same of 8192 x 8192 elements: 5 ms
- ten       the same of 10240 x 10240 elements: 10 ms
- long      the same of 24576 x 24576 elements: 25 ms
- mix       ms on three connections, work on the fourth
- medium    1 MiB there, 256 KiB back, bilinear x2: moving bytes
- tiny      3 KiB there, 768 B back, bilinear x2: the event loop's work
- streams   ms, beside two callers that stream 16 MiB back to back
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np

from gradwire import Client, ops, v1

BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")


def bilinear(*diff_dst: int) -> bytes:
    """Return the message of a bilinear x2 gradient in float32."""
    diff_src = (*diff_dst[:2], diff_dst[2] // 2, diff_dst[3] // 2)
    data = np.random.default_rng(0).normal(size=diff_dst).astype(np.float32)
    return _request(BILINEAR, diff_dst, diff_src, data=data.tobytes())


def _request(
    operator: ops.Operator,
    sizes: Sequence[int],
    result: Sequence[int],
    *,
    data: bytes,
    strides: Sequence[int] = (),
) -> bytes:
    kind = v1.DataType.DATA_TYPE_FLOAT32
    return v1.EvaluateRequest(
        operator=ops.to_message(operator),
        input=v1.TensorDescriptor(data_type=kind, sizes=sizes, strides=strides),
        output=v1.TensorDescriptor(data_type=kind, sizes=result),
        data=data,
    ).SerializeToString()


def _laborious(side: int) -> bytes:
    resample = ops.DmlResampleGrad(interpolation_mode="linear")
    return _request(resample, (side, side), (64, 64), data=bytes(4), strides=(0, 0))


def requests() -> dict[str, tuple[bytes, ...]]:
    """Return the messages of each kind, one for each connection in turn."""
    ms, work = _laborious(4096), _laborious(8192)
    return {
        "short": (_laborious(1024),),
        "ms": (ms,),
        "work": (work,),
        "ten": (_laborious(10240),),
        "long": (_laborious(24576),),
        "mix": (ms, ms, ms, work),
        "medium": (bilinear(1, 4, 256, 256),),
        "tiny": (bilinear(1, 3, 16, 16),),
        "streams": (ms,),
    }


_STREAMED = (1, 4, 1024, 1024)


@contextmanager
def streaming(address: str) -> Generator[list[int]]:
    """Have two callers stream from another process.

    Yields the numbers of their finished calls.

    address  of the server; nothing streams if it is empty
    """
    if not address:
        yield []
        return
    command = [sys.executable, "-m", "benchmarks.overload.kinds", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    counts: list[int] = []
    try:
        yield counts
    finally:
        process.terminate()
        assert process.stdout is not None
        counts.append(sum(1 for _ in process.stdout))
        process.wait()


def _stream(address: str) -> None:
    """Stream back to back until ended; print a line per call."""
    array = np.ones(_STREAMED, np.float32)
    shape = (*_STREAMED[:2], _STREAMED[2] // 2, _STREAMED[3] // 2)
    with Client(address) as client:

        def call() -> None:
            while True:
                client.evaluate(BILINEAR, array, output_shape=shape)
                print(flush=True)

        threads = [threading.Thread(target=call, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _stream(sys.argv[1])
