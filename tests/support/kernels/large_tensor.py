"""Two long rows that become three in one launch; their result is known from a few columns."""

from __future__ import annotations

import numpy as np

from gradwire_server.backends import NumpyCpu
from gradwire_server.plans import Plan
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import Applies, applied
from support.oracles import oracles

# A prime: columns taken for others are found, whatever power of two lies between them.
_PERIOD = 1_000_003


def check_rows(backend: Applies, *, columns: int, period: int = _PERIOD) -> None:
    """Assert that rows of so many float16, equal every `period` columns, give NumPy's bits."""
    up = maps.linear(2, 3)
    rng = np.random.default_rng(6)
    some = rng.standard_normal((2, period)).astype(np.float16)
    expected = applied(NumpyCpu(), Plan.build([up, None], some.shape), some, some.dtype)
    x = np.empty((2, columns), some.dtype)
    for first in range(0, columns, period):
        part = x[:, first : first + period]
        part[...] = some[:, : part.shape[1]]
    y = applied(backend, Plan.build([up, None], x.shape), x, x.dtype)
    for first in range(0, columns, period):
        part = y[:, first : first + period]
        oracles.same_bits(part.copy(), expected[:, : part.shape[1]].copy())
