"""The simulator computes what the device does, and sees what a device would let pass."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cudasim import child, sources
from cudasim.compiler import Mode
from cudasim.module import REVERSE, SimError
from cudasim.samples import mapped, samples, show
from support.kernels.cuda_backends import needs_simulator
from support.oracles import oracles

pytestmark = needs_simulator

_RAMP = np.arange(64, dtype=np.float32)
_ORDERS = [0, REVERSE, 5, 6]

_AWKWARD = np.array([1 / 3, -2.7, 1e-23, -1e-20, 3e18], np.float32)

_SHOW = """
import sys
from cudasim.compiler import Mode
from cudasim.samples import show
for what in sys.argv[2:]:
    show(what, Mode[sys.argv[1]])
"""


@pytest.mark.parametrize("order", _ORDERS)
@pytest.mark.parametrize("what", ["barrier", "dynamic"])
def test_what_a_barrier_orders_does_not_depend_on_the_order_of_threads(
    what: str, order: int
) -> None:
    oracles.same_bits(show(what, Mode.PLAIN, order), _RAMP[::-1])


@pytest.mark.parametrize("order", _ORDERS)
def test_lanes_exchange_values_within_their_warp(order: int) -> None:
    lane = np.arange(64) % 32
    before = np.where(lane > 0, _RAMP - 1, _RAMP)
    after = np.where(lane < 31, _RAMP + 1, _RAMP)
    pair, first = (np.arange(64) ^ 1).astype("f4"), (_RAMP - lane).astype("f4")
    expected = before + 100 * after + 10_000 * pair + 1_000_000 * first
    votes = np.repeat([11, 11], 32)  # threads 0, 3 ... 30 and 33, 36 ... 63
    oracles.same_bits(show("shuffles", Mode.PLAIN, order), (expected + votes).astype("f4"))


def test_memory_is_nan_until_it_is_written() -> None:
    assert np.isnan(samples(Mode.PLAIN).buffer(256).view(np.float32, 64)).all()
    shown = show("missing barrier", Mode.PLAIN)
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
        show(what, Mode.PLAIN, order)
    oracles.same_bits(show("copy", Mode.PLAIN), _RAMP)  # which did no harm to what comes later


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "mode", "finding"),
    [
        ("reads beyond", Mode.ADDRESS, "heap-buffer-overflow"),
        ("short dynamic", Mode.ADDRESS, "use-after-poison"),
        ("misaligned", Mode.ADDRESS, "misaligned address"),
        ("overflow", Mode.ADDRESS, "signed integer overflow"),
        ("missing barrier", Mode.THREAD, "data race"),
        ("race", Mode.THREAD, "data race"),
    ],
)
def test_the_sanitizers_see(what: str, mode: Mode, finding: str) -> None:
    assert child.run(_SHOW, mode.name, what, mode=mode).finding == finding


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.ADDRESS, Mode.THREAD])
def test_the_sanitizers_let_pass_what_is_right(mode: Mode) -> None:
    outcome = child.run(_SHOW, mode.name, "barrier", "dynamic", "shuffles", "copy", mode=mode)
    assert not outcome.finding, outcome.text


def test_arguments_have_the_types_that_the_kernel_declares() -> None:
    module = samples(Mode.PLAIN)
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


def test_declarations_of_shared_memory_are_found_in_every_form_or_refused() -> None:
    text = "extern __shared__ __align__(16) unsigned char raw[];"
    assert sources.respelled(text) == "CUDASIM_DYNAMIC_SHARED(raw, unsigned char);"
    text = "__shared__ Pack<T, 4> rows[8][kWide + 1];  // __shared__"
    assert "CUDASIM_SHARED(rows, [8][kWide + 1], Pack<T, 4>);" in sources.respelled(text)
    with pytest.raises(ValueError, match="line 2 declares shared memory in another form"):
        sources.respelled("\n__shared__ float a, b;")
