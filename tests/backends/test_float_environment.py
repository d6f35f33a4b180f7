"""Flush-to-zero, denormals-are-zero and rounding directions set by someone else in the thread."""

import ctypes
import platform
import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from gradwire_server import backends
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.float_environment import default_float_environment, is_default
from gradwire_server.plans import BandedMap, Plan
from support.kernels.backend_calls import applied
from support.kernels.numba_calls import needs_numba, small_shares
from support.oracles import oracles

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="sets MXCSR through glibc's fenv_t of x86-64",
)

DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, UPWARD, TO_ZERO = 0x40, 0x8000, 0x4000, 0x6000
# Where MXCSR lies in glibc's fenv_t on x86-64, whose last member it is.
_MXCSR = 28


@contextmanager
def mxcsr(bits):
    libm = ctypes.CDLL("libm.so.6")
    before = ctypes.create_string_buffer(32)
    assert libm.fegetenv(before) == 0
    others, register = before.raw[:_MXCSR], int.from_bytes(before.raw[_MXCSR:], "little")
    libm.fesetenv(others + (register | bits).to_bytes(4, "little"))
    try:
        yield
    finally:
        libm.fesetenv(before)


def _halved(backend):
    half = BandedMap.from_blocks([(np.array([[0], [1]]), np.full((2, 1), 0.5))], inputs=2)
    x = np.array([2.0**-126, 2.0**-148], np.float32)
    return applied(backend, Plan.build([half], (2,)), x, np.float32)


@pytest.mark.parametrize(
    "bits", [DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, DENORMALS_ARE_ZERO | FLUSH_TO_ZERO]
)
def test_denormals_survive_a_thread_that_flushes_them(backend, bits):
    with mxcsr(bits):
        flushed = _halved(backend)
        with default_float_environment():
            kept = _halved(backend)
        again = _halved(backend)
    oracles.same_bits(kept, np.array([2.0**-127, 2.0**-149], np.float32))
    # What computes on a device, or in its process, is out of reach of the caller's thread.
    assert backend.may_wait or (flushed == 0).any()
    oracles.same_bits(again, flushed)


@needs_numba
@pytest.mark.parametrize("bits", [DENORMALS_ARE_ZERO | FLUSH_TO_ZERO, UPWARD])
def test_threads_of_a_backend_do_not_inherit_the_environment_they_were_started_in(bits):
    backend, _ = backends.choose("numba_cpu", threads=3)
    backend.warm_up()
    values = np.array([2.0**-126, 2.0**-148, 1 / 3, -0.7], np.float32)
    x = np.random.default_rng(0).choice(values, (512, 256))
    plan = Plan.build([None, oracles.linear_taps(256, 512).map()], x.shape)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    with small_shares():
        with mxcsr(bits):
            applied(backend, plan, x, np.float32)
        assert any(one.name.startswith("gradwire-kernel") for one in threading.enumerate())
        for _ in range(50):
            oracles.same_bits(applied(backend, plan, x, np.float32), expected)


@pytest.mark.parametrize("bits", [FLUSH_TO_ZERO, UPWARD, TO_ZERO])
def test_a_thread_gets_its_environment_back_after_an_error_and_keeps_a_default_one(bits):
    with mxcsr(bits):
        before = is_default()
        with suppress(KeyError), default_float_environment():
            inside = is_default()
            raise KeyError
        after = is_default()
    assert (before, inside, after) == (False, True, False)
    with default_float_environment():
        assert is_default()
    assert is_default()
