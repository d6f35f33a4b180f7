"""What tables take is told by shapes and attributes, for every operator."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dialects.random_calls import RandomCall, random_call
from gradwire import ops
from gradwire_server import dialects
from gradwire_server.backends import NumpyCpu, compute_dtype
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TableCache, TensorSpec
from gradwire_server.errors import RequestLimitError
from support.evaluation_cases import computed

# Elements that are written in a millisecond, and those that a line of Python is worth.
_BUDGET = 1 << 20
_LINE = 64
# Of any backend.
_MOST_INLINE = 1 << 18
laws = settings(deadline=None, max_examples=200)


def elements_written(work: Callable[[], object]) -> int:
    """Count the elements of all arrays that work makes, and its lines, by what those are worth."""
    written = 0

    def on_line(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal written
        if event == "line":
            now, peak = tracemalloc.get_traced_memory()
            written += _LINE + (peak - now) // 8
            tracemalloc.reset_peak()
        return on_line

    tracemalloc.start()
    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        work()
    finally:
        sys.settrace(before)
        tracemalloc.stop()
    return written


def prepared(call: RandomCall) -> tuple[Preparer, EvaluationRequest]:
    return Preparer(Limits(), TableCache(max_entries=1 << 20)), call.request()


@laws
@given(chance=st.randoms(use_true_random=False))
def test_what_counts_as_quick_writes_few_elements(chance: Random) -> None:
    preparer, request = prepared(random_call(chance, longest=1 << 22))
    try:
        assume(preparer.preparation(request).is_quick)
    except RequestLimitError:
        return
    assert elements_written(lambda: preparer.prepare(request)) < _BUDGET
    evaluation = preparer.prepare(request)
    if evaluation.inline_work > _MOST_INLINE:
        return
    data = np.ones(1, evaluation.input.dtype).view(np.uint8)
    written = elements_written(lambda: computed(evaluation, data, NumpyCpu()))
    assert written < 8 * evaluation.inline_work + _BUDGET


# Few outputs of long windows that reach beyond the axis: many taps are on one input.
AT_THE_EDGES = {
    "torch": RandomCall(
        ops.TorchInterpolate(size=(2, 1), mode="bilinear", antialias=True),
        (1, 1, 10088, 1),
        (1, 1, 2, 1),
        np.dtype(np.float64),
    ),
    "torch, gradient": RandomCall(
        ops.TorchUpsampleBackward(size=(6, 1), mode="bilinear", antialias=True),
        (1, 1, 6, 1),
        (1, 1, 15834, 1),
        np.dtype(np.float32),
    ),
    "openvino": RandomCall(
        ops.OpenvinoInterpolate(mode="bilinear_pillow", sizes=(2, 1), axes=(0, 1), antialias=True),
        (12874, 1),
        (2, 1),
        np.dtype(np.float32),
    ),
}


@pytest.mark.parametrize("call", AT_THE_EDGES.values(), ids=list(AT_THE_EDGES))
def test_taps_on_one_input_count_too(call: RandomCall) -> None:
    preparer, request = prepared(call)
    assert preparer.preparation(request).is_quick
    assert elements_written(lambda: preparer.prepare(request)) < _BUDGET


@pytest.mark.parametrize(("dtype", "least"), [(np.float32, 3), (np.float64, 7)])
def test_fused_sums_take_more_work_than_plain_ones(dtype: Any, least: int) -> None:
    def work(mode: Any) -> int:
        operator = ops.TorchInterpolate(size=(8, 1), mode=mode, antialias=True)
        call = RandomCall(operator, (1, 1, 8000, 1), (1, 1, 8, 1), np.dtype(dtype))
        preparer, request = prepared(call)
        return preparer.preparation(request).work

    # Twice as many taps, of which each takes longer.
    assert work("bicubic") > least * work("bilinear")


@laws
@given(chance=st.randoms(use_true_random=False))
def test_tables_take_no_more_memory_than_is_told_before(chance: Random) -> None:
    call = random_call(chance, longest=1 << 18)
    shapes = call.operator.name, call.operator, call.source, call.result
    compute = compute_dtype(call.dtype)
    try:
        told = dialects.forward(*shapes, compute=compute)
    except RequestLimitError:
        return
    assume(told.tables and told.work < 1 << 24)
    tracemalloc.start()
    try:
        dialects.lower(*shapes, compute=compute)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= told.memory_bytes


@pytest.mark.parametrize("mode", ["bilinear_pillow", "bicubic_pillow", "linear"])
@pytest.mark.parametrize("side", ["pads_begin", "pads_end"])
def test_padding_takes_work_but_no_memory(mode: Any, side: str) -> None:
    pads: dict[str, Any] = {side: (1 << 21,)}
    operator = ops.OpenvinoInterpolate(mode=mode, sizes=(1, 1), axes=(0, 1), antialias=True, **pads)
    one = TensorSpec.packed(np.dtype(np.float32), (1, 1))
    request = EvaluationRequest(operator.name, operator, one, one)
    preparer = Preparer(Limits(), TableCache(max_entries=1))
    assert not preparer.preparation(request).is_quick
    tracemalloc.start()
    try:
        evaluation = preparer.prepare(request)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert evaluation.plan.table_entries <= 3
    assert peak < 1 << 23


def test_a_window_of_padding_is_bounded_like_a_table() -> None:
    operator = ops.OpenvinoInterpolate(
        mode="bilinear_pillow", sizes=(1, 1), axes=(0, 1), pads_begin=(1 << 30,)
    )
    with pytest.raises(RequestLimitError, match="max-table-entries"):
        dialects.forward(operator.name, operator, (1, 1), (1, 1))
