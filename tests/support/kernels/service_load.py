"""Calls of several threads at once, through the SDK, whose results are known beforehand."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from gradwire import Client, ops
from gradwire_server import LocalClient
from support.oracles import oracles


@cache
def calls() -> list[tuple[ops.Operator, oracles.Tensor, oracles.Tensor]]:
    """Return calls of one message and of streams, in every type and layout, and their results."""
    rng = np.random.default_rng(9)
    first = ops.InterpolateBackward(mode="linear", data_format="NCX")
    last = ops.InterpolateBackward(mode="linear", data_format="NXC")
    nearest = ops.InterpolateBackward(mode="nearest", data_format="NCX")
    every = ops.DmlResampleGrad(interpolation_mode="linear")
    shapes: list[tuple[ops.Operator, tuple[int, ...], tuple[int, ...]]] = [
        (first, (1, 3, 16, 16), (1, 3, 8, 8)),
        (first, (2, 3, 67, 131), (2, 3, 40, 50)),
        (last, (2, 64, 96, 16), (2, 32, 48, 16)),
        (nearest, (3, 5, 40, 60), (3, 5, 20, 20)),
        (every, (3, 4, 37, 41), (2, 3, 20, 30)),
        (first, (1, 2, 512, 1024), (1, 2, 256, 512)),
        (nearest, (1, 2, 1500, 1024), (1, 2, 500, 512)),
    ]
    found = list[tuple[ops.Operator, oracles.Tensor, oracles.Tensor]]()
    with LocalClient("numpy_cpu") as local:
        for number, (operator, sent, received) in enumerate(shapes):
            dtype = oracles.STORAGE_TYPES[number % len(oracles.STORAGE_TYPES)]
            gradient = rng.standard_normal(sent).astype(dtype)
            expected = local.evaluate(operator, gradient, output_shape=received)
            found.append((operator, gradient, expected))
    return found


def check_load(address: str, *, threads: int = 8, turns: int = 3) -> int:
    """Let threads of one client make every call in an order of their own; return how many."""
    asked = calls()
    with Client(address) as client, ThreadPoolExecutor(threads) as pool:

        def work(number: int) -> None:
            chance = random.Random(number)  # noqa: S311 - an order, no secret
            for _ in range(turns):
                for operator, gradient, expected in chance.sample(asked, len(asked)):
                    given = client.evaluate(operator, gradient, output_shape=expected.shape)
                    oracles.same_bits(given, expected)

        list(pool.map(work, range(threads)))
    return threads * turns * len(asked)
