"""Servers that share an evaluation, and what they are to give."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire_ray.listing import Listing
from gradwire_server.config.settings import Settings
from support.serving import ServerThread, serving

SHAPE = (1, 3, 256, 256)
DIFF_DST = np.random.default_rng(0).normal(size=(1, 3, 512, 512)).astype(np.float32)
# Every tensor is cut, into as many parts as there are targets or elements.
ALWAYS: dict[str, Any] = {"split": True, "split_threshold_bytes": 0, "stream_threshold_bytes": 0}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers that walk a tensor in steps of different sizes."""

    servers: tuple[ServerThread, ...]

    @property
    def targets(self) -> list[str]:
        return [server.address for server in self.servers]


class List(Listing):
    """A list of replicas that a test changes."""

    def __init__(self, *replicas: str, **settings: Any) -> None:
        self.replicas = list(replicas)
        super().__init__(
            "some",
            host="127.0.0.1",
            port=0,
            settings=Settings(**settings),
            addresses=lambda: self.replicas,
        )


@contextmanager
def fleet_serving() -> Generator[Fleet]:
    with ExitStack() as stack:
        slabs = (2 << 20, 1000, 60)
        yield Fleet(tuple(stack.enter_context(serving(slab_bytes=slab)) for slab in slabs))


def same_bits(result: NDArray[Any], expected: NDArray[Any]) -> None:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tobytes() == expected.tobytes()
