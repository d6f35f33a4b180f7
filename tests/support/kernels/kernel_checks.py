"""What is asserted of compiled kernels, whatever processor they were compiled for."""

from __future__ import annotations

import numpy as np

from gradwire_server.backends import Backend
from gradwire_server.plans import BandedMap, Plan
from support.kernels.backend_calls import applied
from support.kernels.kernel_cases import FORMATS, Case, check, numbers, some_formats
from support.kernels.kernel_table import cases
from support.oracles import oracles


def check_all(backend: Backend) -> None:
    """Assert NumPy's bits of every listed case in some formats, and of conversions."""
    for case in cases():
        for arriving, leaving in some_formats(case):
            check(backend, case.plan, numbers(case, arriving, special=True), leaving)
    check_conversions(backend)


def check_case(backend: Backend, case: Case) -> None:
    for special in (False, True):
        for arriving, leaving in FORMATS[special::2]:
            check(backend, case.plan, numbers(case, arriving, special=special), leaving)


def _reversed_rows(rows: int) -> BandedMap:
    return BandedMap.from_taps(np.arange(rows)[::-1, np.newaxis], np.ones((rows, 1)), inputs=rows)


def check_conversions(backend: Backend) -> None:
    """Assert that all 16-bit numbers come in exactly, and float32 goes out rounded to nearest even.

    Of float32: all 16-bit numbers, all ties between neighbors, what lies next to those, overflow,
    denormal numbers, and random bits.
    """
    words = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(6)
    for narrow in oracles.STORAGE_TYPES[1:3]:
        held = words.view(narrow)
        _check_copied(backend, held, np.dtype(np.float32))
        _check_copied(backend, held, narrow)
        with np.errstate(invalid="ignore"):
            exact = np.sort(held[np.isfinite(held)].astype(np.float32))
        ties = exact[:-1] + (exact[1:] - exact[:-1]) / 2
        ends = np.array(
            [65504, 65519.996, 65520, 65536, 3.3895314e38, 3.4e38, np.inf, np.nan], "f4"
        )
        near = np.concatenate([exact, ties, ends, -ends])
        with np.errstate(all="ignore"):
            above, below = (np.nextafter(near, np.float32(to)) for to in (np.inf, -np.inf))
        random = rng.integers(0, 1 << 32, 1 << 19, np.uint32).view(np.float32)
        _check_copied(backend, np.concatenate([near, above, below, random]), narrow)


def _check_copied(backend: Backend, x: oracles.Tensor, dtype: np.dtype[np.generic]) -> None:
    """Copy rows of different lengths to other places: what goes out is what NumPy converts."""
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
        for rows in (2, 3):
            length = len(x) // rows * rows
            plan = Plan.build([_reversed_rows(rows), None], (rows, length // rows))
            result = applied(backend, plan, x[:length].reshape(rows, -1), dtype)
            oracles.same_bits(result, expected[:length].reshape(rows, -1)[::-1])
