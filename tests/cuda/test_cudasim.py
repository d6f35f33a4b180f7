"""The simulator computes what the device does, and sees what a device would let pass."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cudasim.module import REVERSE, SimError
from cudasim.samples import mapped, samples, show
from support.kernels.cuda_backends import needs_simulator
from support.oracles import oracles

pytestmark = needs_simulator

_RAMP = np.arange(64, dtype=np.float32)
_ORDERS = [0, REVERSE, 5, 6]

_AWKWARD = np.array([1 / 3, -2.7, 1e-23, -1e-20, 3e18], np.float32)


@pytest.mark.parametrize("order", _ORDERS)
def test_what_a_barrier_orders_does_not_depend_on_the_order_of_threads(order: int) -> None:
    oracles.same_bits(show("barrier", order), _RAMP[::-1])


@pytest.mark.parametrize("order", _ORDERS)
def test_lanes_exchange_values_within_their_warp(order: int) -> None:
    lane = np.arange(64) % 32
    before = np.where(lane > 0, _RAMP - 1, _RAMP)
    after = np.where(lane < 31, _RAMP + 1, _RAMP)
    oracles.same_bits(show("shuffles", order), before + 100 * after)


def test_memory_is_nan_until_it_is_written() -> None:
    assert np.isnan(samples().buffer(256).view(np.float32, 64)).all()
    shown = show("missing barrier")
    assert np.isnan(shown).any()


@pytest.mark.parametrize(
    ("what", "order", "message"),
    [
        ("reads beyond", 0, "illegal address: beyond a buffer, 256 bytes from its start"),
        ("reads before", REVERSE, "illegal address: below a buffer, -4 bytes from its start"),
        ("writes input", 0, r"a read-only buffer.*block \(0,0,0\) thread \(0,0,0\)"),
        ("leaves", 0, "barrier divergence: 63 threads wait at samples.cu:.* 1 have returned"),
        ("two barriers", 0, "different __syncthreads: samples.cu:.* and samples.cu:"),
        ("mask", 0, "lane 16 is not in mask 0xffff"),
        ("large block", 0, r"invalid block \(1025,1,1\)"),
    ],
)
def test_guard_pages_and_the_scheduler_see(what: str, order: int, message: str) -> None:
    with pytest.raises(SimError, match=message):
        show(what, order)
    oracles.same_bits(show("copy"), _RAMP)  # which did no harm to what comes later


def test_arguments_have_the_types_that_the_kernel_declares() -> None:
    module = samples()
    x = module.buffer(256)
    with pytest.raises(SimError, match=r"takes arguments of \[8, 8, 4\] bytes; \[8, 8, 8\] came"):
        module.launch("copy", (1,), (64,), [x, x, np.int64(0)])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("__half", np.dtype(np.float16)), ("__nv_bfloat16", np.dtype(ml_dtypes.bfloat16))],
)
def test_sixteen_bit_numbers_are_converted_as_numpy_does(
    name: str, dtype: np.dtype[np.generic]
) -> None:
    words = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        wide = words.astype(np.float32)
        awkward = _awkward(wide)
        narrowed = awkward.astype(dtype)
        oracles.same_bits(mapped(f"widen<{name}>", [words], wide), wide)
        oracles.same_bits(mapped(f"narrow<{name}>", [wide], words), words)
        oracles.same_bits(mapped(f"narrow<{name}>", [awkward], narrowed), narrowed)


def _awkward(exact: oracles.Tensor) -> oracles.Tensor:
    some = np.sort(exact[np.isfinite(exact)])
    ties = some[:-1] + (some[1:] - some[:-1]) / 2
    beside = [np.nextafter(ties, np.float32(to)) for to in (np.inf, -np.inf)]
    random = np.random.default_rng(3).integers(0, 1 << 32, 1 << 18, np.uint32).view(np.float32)
    values = np.concatenate([ties, *beside, random])
    return values[: len(values) // 64 * 64].astype(np.float32)


def test_products_are_rounded_before_they_are_added_and_denormals_kept() -> None:
    rng = np.random.default_rng(4)
    a, b, c = (rng.choice(_AWKWARD, 4096) for _ in range(3))
    product = a * b
    assert ((np.abs(product) < 1.1e-38) & (product != 0)).any()
    oracles.same_bits(mapped("multiply_add", [a, b, -product], a), np.zeros_like(a))
    oracles.same_bits(mapped("multiply_add", [a, b, c], a), product + c)
