"""The evaluations that a load consists of, and how their results are judged, bit by bit.

Inputs are made by exact arithmetic, so that they are the same on every machine, and so must be the
results: their digests stand here. A load test therefore finds wrong results, also of a server that
gives the same wrong ones each time.
"""

from __future__ import annotations

import hashlib
import math
import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradwire import ops
from gradwire._options import STREAM_THRESHOLD_BYTES
from gradwire.ops import Operator

Array = NDArray[Any]
Shape = tuple[int, ...]

# Knuth's multiplier for hashing by multiplication (The Art of Computer Programming, 6.4).
_MULTIPLIER: Final = 2654435761


@dataclass(frozen=True, slots=True)
class Problem:
    """One evaluation; every tensor is float32.

    sent, received  shapes of the input and of the result
    digest          SHA-256 of the result's little-endian elements, in hexadecimal
    broadcast       whether the input is one element, seen everywhere
    """

    name: str
    operator: Operator
    sent: Shape
    received: Shape
    digest: str
    broadcast: bool = False

    def input(self) -> Array:
        """Make the input, its numbers between -0.5 and 0.5."""
        count = 1 if self.broadcast else math.prod(self.sent)
        mixed = (np.arange(1, count + 1, dtype=np.uint64) * _MULTIPLIER) & 0xFFFFFFFF
        numbers = ((mixed >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5).astype(np.float32)
        if self.broadcast:
            return np.broadcast_to(numbers[0], self.sent)
        return numbers.reshape(self.sent)

    @property
    def is_streamed(self) -> bool:
        """Whether the SDK sends it as a stream."""
        return max(self.sent_bytes, self.received_bytes) > STREAM_THRESHOLD_BYTES

    @property
    def sent_bytes(self) -> int:
        """Tensor bytes that travel to the server."""
        return 4 if self.broadcast else 4 * math.prod(self.sent)

    @property
    def received_bytes(self) -> int:
        """Tensor bytes that travel back."""
        return 4 * math.prod(self.received)


_BILINEAR: Final = ops.InterpolateBackward(mode="bilinear", data_format="NCX")

PROBLEMS: Final = {
    problem.name: problem
    for problem in (
        Problem(
            "tiny",
            _BILINEAR,
            (1, 3, 16, 16),
            (1, 3, 8, 8),
            "1e4cb42a085be44a10dc9b171523125299d99ecf2574da943ed7bed27c1ccfdb",
        ),
        # The largest that the SDK sends as one message.
        Problem(
            "medium",
            ops.TorchUpsampleBackward(mode="bicubic"),
            (1, 4, 128, 128),
            (1, 4, 64, 64),
            "b25e9d1271c25e447350133f4950e3dc26c8743fd6d5b9ef015304c965d65ca2",
        ),
        Problem(
            "large",
            _BILINEAR,
            (1, 16, 512, 512),
            (1, 16, 256, 256),
            "1ef7aa67d205c6d2d40912e3787d3492841cc8df9ce508b49400ac03a63336ad",
        ),
        Problem(
            "enlarging",
            ops.DmlResample(interpolation_mode="linear"),
            (1, 16, 256, 256),
            (1, 16, 512, 512),
            "6c1edb86386697711b2a456ca105c4736fd8eabbc90e85a2770f59df556c3e3f",
        ),
        # Some milliseconds of computing, and next to nothing to move.
        Problem(
            "work",
            ops.DmlResampleGrad(interpolation_mode="linear"),
            (8192, 8192),
            (64, 64),
            "6e0d4fdb9ce1c40e66135a7f53623a5e11751946e9b5513d7eab2525aa4fa76e",
            broadcast=True,
        ),
    )
}


def digest_of(result: Array) -> str:
    """Return the SHA-256 of an array's little-endian elements, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(result, "<f4").tobytes()).hexdigest()


class Judge:
    """Tells right results from wrong ones; any thread may ask.

    The first right one is known by its digest; those after it are compared with it, which is a
    hundred times faster.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._lock = threading.Lock()
        self._right: Array | None = None

    def is_right(self, result: Array) -> bool:
        """Whether a result has the bits that it must have."""
        right = self._right
        if right is not None:
            return np.array_equal(result.view(np.uint32), right)
        with self._lock:
            if digest_of(result) != self._problem.digest:
                return False
            self._right = np.ascontiguousarray(result).view(np.uint32).copy()
            return True
