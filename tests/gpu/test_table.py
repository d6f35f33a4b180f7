"""A GPU has NumPy's bits in every row of the table, also with several streams at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.plans import Plan
from support.kernels import cuda_table
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.kernels.cuda_table import Row
from support.oracles import oracles


def test_every_row_has_the_bits_of_numpy(cuda: Cuda) -> None:
    for row in cuda_table.rows():
        row.check(cuda)


def test_all_rows_have_one_digest_wherever_they_are_computed(cuda: Cuda) -> None:
    rows = cuda_table.rows()
    assert cuda_table.digest(cuda, rows) == cuda_table.digest(NumpyCpu(), rows)


def test_threads_at_once_have_the_bits_of_numpy(cuda: Cuda) -> None:
    def check(row: Row) -> None:
        row.check(cuda)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, cuda_table.rows()))


@pytest.mark.parametrize("inner", [1, 3, 16])
def test_inputs_added_in_pieces_have_the_bits_of_numpy(cuda: Cuda, inner: int) -> None:
    x = np.random.default_rng(3).normal(size=(2, 97, 2 * inner)).astype(np.float32)[:, :, ::2]
    bands = maps.cubic(29, 97).adjoint()
    added = list[oracles.Tensor]()
    for backend in (cuda, NumpyCpu()):
        y, carried = np.full((2, bands.outputs, inner), np.nan, np.float32), 0
        for low, high in pairwise((0, 13, 50, 97)):
            piece = bands.window(0, bands.outputs, low, high)
            backend.accumulate(piece, x[:, low:high], y, axis=1, carried=carried)
            carried = int((bands.start < high).sum())
        added.append(y)
    oracles.same_bits(*added)


def test_tensors_larger_than_pinned_memory_have_the_bits_of_numpy(cuda: Cuda) -> None:
    up = maps.linear(1024, 2048)
    plan = oracles.adjoint(Plan.build([None, up, up], (3, 1024, 1024)))
    x = np.random.default_rng(4).standard_normal(plan.input_shape).astype(np.float32)
    oracles.same_bits(*(applied(one, plan, x, np.float32) for one in (cuda, NumpyCpu())))


def test_more_than_its_limit_is_an_error_that_passes(cuda: Cuda) -> None:
    """The plan moves the first axis: it cannot be cut into parts."""
    plan = Plan.build([maps.linear(1 << 14, 1 << 14 | 1), None], (1 << 14, 1 << 14))
    x = np.zeros(plan.input_shape, np.float32)
    with pytest.raises(MemoryError):
        applied(cuda, plan, x, np.float16)
    cuda_table.rows()[0].check(cuda)
