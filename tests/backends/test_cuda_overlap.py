"""Large calls of the CUDA backend: in parts and pieces, copied while the device computes.

The simulated device does nothing before somebody waits, or everything at once; it copies from
pinned memory only, refuses to use released memory, and records the tasks of its streams.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.plans import Plan
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.kernels.cuda_backends import MIB, check, needs_simulator, simulated, sliced_plan
from support.oracles import oracles

pytestmark = needs_simulator


@settings(max_examples=60, deadline=None)
@given(data=st.data(), plan=oracles.plans(), buffer=st.sampled_from([1, 16, 50, 4096]))
def test_any_plan_in_parts_and_pieces_of_any_size_has_the_bits_of_numpy(
    data: st.DataObject, plan: Plan, buffer: int
) -> None:
    device = simulated(eager=data.draw(st.booleans()))
    backend = Cuda(device, memory_bytes=MIB, streams=2, buffer_bytes=buffer)
    dtype = data.draw(st.sampled_from(oracles.STORAGE_TYPES))
    x = data.draw(oracles.tensors(plan.input_shape, dtype=dtype))
    expected = applied(NumpyCpu(), plan, x, dtype)
    oracles.same_bits(applied(backend, plan, x, dtype), expected)
    assert device.most_taken <= MIB


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("buffer", [1, 100, 4096, 1 << 16])
def test_sums_in_parts_and_pieces_have_the_bits_of_numpy(
    eager: bool,  # noqa: FBT001
    buffer: int,
) -> None:
    backend = Cuda(simulated(eager=eager), memory_bytes=MIB, streams=1, buffer_bytes=buffer)
    rng, bands = np.random.default_rng(1), maps.linear(9, 12)
    for axis, x_shape, y_shape in ((1, (7, 9, 5), (7, 12, 5)), (0, (9, 35), (12, 35))):
        x = rng.standard_normal(x_shape).astype(np.float32)
        sums = rng.standard_normal((*y_shape[:-1], 2 * y_shape[-1])).astype(np.float32)[..., ::2]
        expected = sums.copy()
        backend.accumulate(bands, x, sums, axis=axis, carried=5)
        NumpyCpu().accumulate(bands, x, expected, axis=axis, carried=5)
        oracles.same_bits(sums.copy(), expected)


@pytest.mark.parametrize("change", ["columns left out", "transposed"])
def test_input_that_is_not_contiguous_is_copied_in_order(change: str) -> None:
    plan = sliced_plan(2, 16)
    numbers = np.random.default_rng(3).standard_normal((2, 32, 64)).astype(np.float32)
    x = numbers[:, :, ::2] if change == "columns left out" else numbers[:, :, :32].swapaxes(1, 2)
    backend = Cuda(simulated(), memory_bytes=4 * MIB, buffer_bytes=1000)
    oracles.same_bits(
        applied(backend, plan, x, np.float32), applied(NumpyCpu(), plan, x, np.float32)
    )


def _traced(plan: Plan, *, buffer: int) -> list[str]:
    """Return the tasks of a call, and its waits, where its tables are on the device."""
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB, buffer_bytes=buffer)
    check(backend, plan)
    device.trace.clear()
    check(backend, plan)
    assert len({stream for _, stream in device.trace}) == 1
    return [what for what, _ in device.trace]


def test_the_next_part_goes_up_before_a_thread_waits_for_the_first() -> None:
    part = ["up", "launch", "down"]
    trace = _traced(sliced_plan(16, 32), buffer=1 << 16)
    assert list(takewhile(lambda what: what != "wait", trace)) == 2 * part
    assert [what for what in trace if what != "wait"] == 4 * part
    # The third part waits for the first: for its upload, then for its result.
    assert trace[6:11] == ["wait", "up", "launch", "wait", "down"]


def test_a_buffer_is_filled_while_others_are_copied() -> None:
    """One slice of eight pieces, which cannot be cut into parts."""
    trace = _traced(sliced_plan(1, 64), buffer=1 << 13)
    up = "".join({"up": "u", "wait": "w"}.get(what, " ") for what in trace).split()[0]
    assert up == "uuuu" + 4 * "wu"


def test_a_small_call_is_one_part() -> None:
    trace = _traced(sliced_plan(16, 32), buffer=4 * MIB)
    assert trace == ["up", "launch", "down", "wait", "wait"]


def test_a_large_call_takes_the_memory_of_a_part() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=4 * MIB, buffer_bytes=1 << 18)
    plan = sliced_plan(128, 64)
    assert np.prod(plan.input_shape) * 4 == 8 * MIB
    check(backend, plan)
    assert device.most_taken < MIB


def test_parts_are_equal_but_for_the_last() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=4 * MIB, buffer_bytes=10 * 16 * 16 * 4)
    # 23 slices of which 10 fit are three parts of 8, 8 and 7.
    check(backend, sliced_plan(23, 8))
    assert [what for what, _ in device.trace].count("launch") == 3
