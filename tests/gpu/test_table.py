"""A GPU has NumPy's bits in every row of the table, also with several streams at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cuda_table
from backend_calls import applied
from cuda_table import Row
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cupy_cuda.backend import Cuda
from gradwire_server.plans import Plan


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


def test_more_than_its_limit_is_an_error_that_passes(cuda: Cuda) -> None:
    plan = Plan.build([None, None], (1 << 14, 1 << 14))
    x = np.zeros(plan.input_shape, np.float32)
    with pytest.raises(MemoryError):
        applied(cuda, plan, x, np.float16)
    cuda_table.rows()[0].check(cuda)
