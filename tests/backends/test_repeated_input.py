"""What is repeated along axes of the input is read where it is, with the bits of a copy."""

from __future__ import annotations

import zlib
from itertools import product

import numpy as np
import pytest

from gradwire_server.backends import NumpyCpu, TellsHeldBytes
from gradwire_server.plans import Plan
from support.kernels.kernel_maps import linear
from support.kernels.kernel_table import Case, cases, check, numbers, some_formats
from support.kernels.numba_calls import compiled, needs_numba, small_shares

pytestmark = needs_numba


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_repeated_slices_have_the_bits_of_copies(case: Case) -> None:
    choices = list(product([False, True], repeat=len(case.plan.input_shape)))
    first = zlib.crc32(case.name.encode())
    for number, (arriving, leaving) in enumerate(some_formats(case)):
        whole = numbers(case, arriving, special=True)
        some = choices[(first + 7 * number) % len(choices)]
        for repeated in (some, choices[len(choices) // 2], choices[-1]):
            once = whole[tuple(slice(1) if again else slice(None) for again in repeated)]
            check(compiled(1), case.plan, np.broadcast_to(once, whole.shape), leaving)


@pytest.mark.parametrize("threads", [1, 3])
def test_one_number_is_a_tensor_of_any_shape(threads: int) -> None:
    with small_shares():
        for shape in ((64, 96), (3, 64, 96), (2, 3, 40, 64, 96)):
            maps = [None] * (len(shape) - 2) + [linear(64, 33), linear(96, 50)]
            x = np.broadcast_to(np.float32(0.1), shape)
            check(compiled(threads), Plan.build(maps, shape), x, np.float32)


def test_only_a_row_is_held_of_an_input_that_repeats_it() -> None:
    plan = Plan.build([linear(2048, 64), linear(1024, 32)], (2048, 1024))
    backend = compiled(1)
    assert isinstance(backend, TellsHeldBytes)
    y = np.empty(plan.output_shape, np.float32)
    x = np.zeros(1024, np.float32)
    assert backend.held_bytes(plan, np.broadcast_to(x, plan.input_shape), y) == 0
    assert backend.held_bytes(plan, np.broadcast_to(x[:1], plan.input_shape), y) == x.nbytes
    column = np.zeros((2048, 1), np.float32)
    assert backend.held_bytes(plan, np.broadcast_to(column, plan.input_shape), y) == 4 << 21
    assert not isinstance(NumpyCpu(), TellsHeldBytes)
