"""Any slabs, chunks and layouts give the bits of one apply(); caches stay within their bounds."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire import ops
from gradwire_server import engine
from gradwire_server.backends import NumpyCpu
from gradwire_server.dialects.dialect import Axis
from gradwire_server.engine import Execution, InputAssembler, Limits, Preparer, TensorSpec
from gradwire_server.lru import Recent
from gradwire_server.plans import BandedMap, Plan
from gradwire_server.plans.sampling import Taps
from support import evaluation_cases
from support.evaluation_cases import BACKEND, Case, cases, computed, data_for, expected
from support.examples import examples
from support.kernels import kernel_maps as maps
from support.kernels.numba_calls import compiled, needs_numba


def streamed(evaluation, data, chunk, resume_from=0, stop_before=None):
    """Give each step's result a place amid bytes that must stay; join the results."""
    execution = Execution(evaluation, BACKEND)
    assembler = InputAssembler(evaluation, resume_from=resume_from, stop_before=stop_before)
    pieces, position = [], resume_from
    firsts, stop = range(assembler.position, assembler.stop, chunk), assembler.stop
    for part in (data[:0], *(data[first : min(first + chunk, stop)] for first in firsts)):
        for step, rows in assembler.feed(part):
            low, high = evaluation.output_range(step)
            memory = np.full(high - low + 16, 0xA5, np.uint8)
            execution.step(step, rows, memory[8:-8])
            assert (memory[[*range(8), *range(-8, 0)]] == 0xA5).all()
            if high > max(low, position):
                pieces.append(memory[8 + max(0, position - low) : -8])
                assert low <= position
                position = high
    assert assembler.complete
    given = np.concatenate(pieces)
    return given if stop_before is None else given[: stop_before - resume_from]


@examples(800)
@given(
    case=cases(),
    chunk=st.integers(1, 80),
    where=st.floats(0, 1, exclude_max=True),
    cuts=st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=4),
)
def test_any_slab_chunk_layout_resume_point_and_ranges_give_the_same_bits(case, chunk, where, cuts):
    data, evaluation = data_for(case.source), case.evaluation()
    whole = expected(case, data)
    assert evaluation.output.wire_bytes == len(whole)
    np.testing.assert_array_equal(streamed(evaluation, data, chunk), whole)
    resume_from = int(where * len(whole))
    resumed = streamed(evaluation, data, chunk, resume_from)
    np.testing.assert_array_equal(resumed, whole[resume_from:])
    ends = sorted({0, len(whole), *(math.ceil(cut * len(whole)) for cut in cuts)})
    parts = [streamed(evaluation, data, chunk, *ends) for ends in pairwise(ends)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    for one in (evaluation, evaluation.with_slab(1), evaluation.with_slab(1 << 62)):
        assert computed(one, data).tobytes() == whole.tobytes()


def _corners(inputs, outputs):
    """Return a map; one to few outputs is a gradient's, whose steps run through the rows."""
    few = outputs <= 8
    return maps.corners(outputs, inputs).adjoint() if few else maps.corners(inputs, outputs)


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(8, 4000), (4000, 8), (4000, 2000)], ids=["running", "up", "down"]
)
def test_a_range_needs_the_rows_of_its_bands_and_no_others(outputs, inputs):
    bands, row = _corners(inputs, outputs), 64 * 4
    evaluation = Case.packed(Plan.build([None, bands, None], (1, inputs, 64)), 4096).evaluation()
    for first, stop in pairwise(outputs * part // 4 for part in range(5)):
        assembler = InputAssembler(evaluation, resume_from=first * row, stop_before=stop * row)
        assert assembler.position == (bands.start[first] * row if first else 0)
        assert assembler.stop == (bands.stop[stop - 1] if stop < outputs else inputs) * row


@pytest.mark.parametrize("empty", [[3, 4], [0, 3, 4], [1, 4]], ids=str)
@pytest.mark.parametrize(("slab", "mode"), [(1, "running"), (1 << 20, "slices")])
def test_ranges_that_end_with_an_empty_band_need_no_bytes_beyond_the_input(empty, slab, mode):
    index = np.minimum(4 * np.arange(5)[:, None] + np.arange(4), 11)
    weight = np.ones((5, 4))
    weight[empty] = 0
    bands = BandedMap.from_blocks([(index, weight)], inputs=12)
    plan = Plan.build([None, bands, None], (2, bands.inputs, 3))
    case = Case.packed(plan, slab)
    data, evaluation = data_for(case.source), case.evaluation()
    whole = expected(case, data)
    assert evaluation.walk.mode == mode
    assert bands.start[-1] == bands.inputs
    for first, stop in combinations(range(0, len(whole) + 1, 12), 2):
        assert evaluation.input_stop(stop) <= len(data)
        part = streamed(evaluation, data, 5, first, stop)
        np.testing.assert_array_equal(part, whole[first:stop])


@pytest.mark.parametrize(
    ("outputs", "inputs", "mode"),
    [(8, 4000, "running"), (4000, 8, "window"), (4000, 2000, "window")],
)
def test_a_steps_cost_does_not_grow_with_the_tensor(outputs, inputs, mode):
    slab, width = 4096, 64
    plan = Plan.build([None, _corners(inputs, outputs), None], (3, inputs, width))
    evaluation = Case.packed(plan, slab).evaluation()
    assert evaluation.walk.mode == mode
    for step in evaluation.steps():
        low, high = evaluation.input_range(step)
        first, stop = evaluation.output_range(step)
        assert (high - low + stop - first) // 4 <= evaluation.walk.largest_step
    assert evaluation.walk.largest_step <= max(slab, 4 * width)


def test_the_largest_step_holds_all_results_that_an_input_row_reaches():
    width, bands = 64, maps.corners(8, 400).adjoint()
    reached = ((bands.start <= (row := np.arange(400)[:, None])) & (row < bands.stop)).sum(axis=1)
    plan = Plan.build([None, bands, None], (3, bands.inputs, width))
    walk = Case.packed(plan, 1).evaluation().walk
    assert walk.mode == "running"
    assert max(reached) > 1
    assert walk.largest_step == width * (1 + max(reached))


def test_a_copy_is_cut_into_slabs_whatever_its_shape():
    for sizes in [(1 << 20,), (1, 1, 1024, 1024), (64, 128, 128), (1 << 18, 2, 2)]:
        evaluation = Case.packed(Plan.build([None] * len(sizes), sizes), 1 << 16).evaluation()
        steps = list(evaluation.steps())
        assert math.prod(sizes) // (1 << 16) <= len(steps) <= 4 * math.prod(sizes) // (1 << 16)


def _run(evaluation, data, backend):
    result = np.full(evaluation.output.wire_bytes, 0xA5, np.uint8)
    steps = len(list(engine.in_memory(evaluation, result, data, backend)))
    return result, steps


@pytest.mark.slow
@needs_numba
@examples(200)
@given(case=cases(), slab=st.sampled_from([1, 1 << 4, 1 << 20]))
def test_compiled_kernels_give_the_same_bits_in_large_steps(case, slab):
    data = data_for(case.source)
    result, steps = _run(replace(case, slab=slab).evaluation(), data, compiled(2))
    np.testing.assert_array_equal(result, expected(case, data))
    assert steps <= len(list(replace(case, slab=slab).evaluation().steps()))


@examples(300)
@given(case=cases(), slab=st.sampled_from([1 << 4, 1 << 20]), backward=st.booleans())
def test_a_run_on_tensors_gives_the_bits_of_apply(case, slab, backward):
    evaluation = replace(case, slab=slab).evaluation()
    data = data_for(case.source)
    source = evaluation_cases.strided(data, case.source)
    if backward:
        source = np.ascontiguousarray(source[::-1])[::-1]
    written = np.full(evaluation.output.wire_bytes, 0xA5, np.uint8)
    result = evaluation_cases.strided(written, evaluation.output)
    assume(engine.are_rows(evaluation, source))
    x, y = engine.rows_of(evaluation, source), engine.rows_of(evaluation, result)
    assert np.may_share_memory(x, source)
    assert not engine.are_rows(evaluation, source.astype(source.dtype.newbyteorder(">")))
    execution = Execution(evaluation, BACKEND)
    for step in evaluation.steps():
        outer = slice(step.outer_first, step.outer_stop)
        rows = x[outer, step.in_first : step.in_stop]
        execution.rows(step, rows, y[outer, step.out_first : step.out_stop])
    np.testing.assert_array_equal(written, expected(case, data))


@examples(100)
@given(case=cases(), chunk=st.integers(1, 80))
def test_the_input_of_steps_that_are_held_is_not_overwritten(case, chunk):
    held = 2
    data, evaluation = data_for(case.source), case.evaluation()
    assembler = InputAssembler(evaluation)
    given = []
    for first in range(0, len(data), chunk):
        for step, rows in assembler.feed(data[first : first + chunk]):
            given = [*given, (rows, slice(*evaluation.input_range(step)))][-held:]
        # Even when the next step's bytes have begun to come.
        for rows, place in given:
            np.testing.assert_array_equal(rows, data[place])


@pytest.mark.parametrize(("slab", "most"), [(400, 2), (70, 3)])
def test_outer_slices_share_plans(slab, most):
    plan = Plan.build([None, maps.area(16, 8), None], (11, 16, 4))
    evaluation = Case.packed(plan, slab).evaluation()
    used = [evaluation.walk.plan_of(one) for one in evaluation.steps()]
    assert len(set(map(id, used))) <= most < len(used)


BACKENDS = ["numpy_cpu", pytest.param("numba_cpu", marks=needs_numba)]


def backend_of(name):
    return BACKEND if name == "numpy_cpu" else compiled(1)


@cache
def workbench(name):
    return engine.Workbench(backend_of(name))


def in_bfloat16(case):
    source, result = (
        replace(spec, dtype=np.dtype(ml_dtypes.bfloat16)) for spec in (case.source, case.result)
    )
    return replace(case, source=source, result=result)


ANY = cases() | cases().map(in_bfloat16)


def moved(data, by):
    """Copy bytes to an address that may be odd."""
    return memoryview(bytes(by) + data.tobytes())[by:]


@pytest.mark.parametrize("name", BACKENDS)
@examples(120)
@given(case=ANY, roomy=st.booleans(), count=st.integers(1, 70), shift=st.integers(0, 7))
def test_a_batch_gives_the_bits_of_each_by_itself(name, case, roomy, count, shift):
    evaluation = replace(case, slab=1 << 20 if roomy else case.slab).evaluation()
    assume(evaluation.most_at_once)
    inputs = [data_for(case.source, seed) for seed in range(min(count, evaluation.most_at_once))]
    results = engine.together(evaluation, [moved(each, shift) for each in inputs], backend_of(name))
    np.testing.assert_array_equal(results, [expected(case, each) for each in inputs])


def halves(side, *, slab=1 << 20):
    half = maps.area(side, side // 2)
    return Case.packed(Plan.build([None, half, half], (3, side, side)), slab)


def test_a_batch_is_one_call_of_the_backend_and_few_plans_serve_all_sizes():
    evaluation, backend = halves(8).evaluation(), NumpyCpu()
    data = data_for(evaluation.input).data
    with patch.object(backend, "apply", wraps=backend.apply) as applied:
        for count in range(1, 65):
            engine.together(evaluation, [data] * count, backend)
            assert applied.call_count == count
    assert len({id(call.args[0]) for call in applied.call_args_list}) == 4


@pytest.mark.parametrize("name", BACKENDS)
@examples(100)
@given(chosen=st.lists(ANY, min_size=1, max_size=3), dirt=st.integers(0, 255))
def test_any_layout_has_its_bits_again_and_again(name, chosen, dirt):
    bench = workbench(name)
    evaluations = [(case, case.evaluation()) for case in chosen]
    for seed, (case, evaluation) in product(range(2), evaluations):
        if bench.takes(evaluation):
            data = data_for(case.source, seed)
            result = bench.run(evaluation, moved(data, dirt % 8))
            assert bytes(result) == expected(case, data).tobytes()
            np.frombuffer(result, np.uint8)[...] = dirt


def _halved(size):
    def sample(_size, outputs):
        index = 2 * outputs[:, None]
        return Taps(index, np.ones(index.shape, np.float32))

    return Axis(size, -(-size // 2), 1, sample, (size,))


def test_values_are_kept_within_their_number_and_their_weight():
    recent = Recent(most=2, max_weight=10)
    for key, weight in (("a", 1), ("b", 9), ("b", 2), ("c", 8)):
        recent.keep(key, key.upper(), weight=weight)
    assert ["a" in recent, recent.get("b"), recent.get("c")] == [False, "B", "C"]
    recent.keep("d", "D", weight=3)
    assert ["b" in recent, "c" in recent, recent.get("d")] == [False, False, "D"]
    recent.keep("e", "E", weight=11)
    assert "e" not in recent


def _request(offset, *, rows=4):
    operator = ops.DmlResample(
        interpolation_mode="linear", input_pixel_offsets=(offset,), output_pixel_offsets=(0.0,)
    )
    source, result = (TensorSpec.packed(np.dtype(np.float32), (size,)) for size in (rows, 6))
    return engine.EvaluationRequest(operator.name, operator, source, result)


def test_an_evaluation_is_prepared_once_and_zeros_of_both_signs_are_two():
    assert _request(-0.0) == _request(0.0)
    kept, fresh = (Preparer(Limits()) for _ in range(2))
    kept.prepare(_request(0.0))
    assert kept.prepare(_request(-0.0)).digest == fresh.prepare(_request(-0.0)).digest
    first = kept.prepare(_request(0.0))
    assert kept.prepare(_request(-0.0)).digest != first.digest
    assert kept.prepare(_request(0.0)) is first
    assert kept.prepare(_request(0.0, rows=5)) is not first


def test_tables_are_kept_unless_large_apart_for_the_gradient_and_for_a_zero_of_another_sign():
    def sample(_size, shift, outputs):
        index = outputs[:, None]
        return Taps(index, np.full(index.shape, np.copysign(1.0, shift)))

    plus, minus = (Axis(4, 4, 1, sample, (4, zero)) for zero in (0.0, -0.0))
    assert plus == minus
    preparer, axis, large = Preparer(Limits(), most_kept=100), _halved(8), _halved(100)
    assert preparer.table(plus, gradient=False).weight[0] == 1
    assert preparer.table(minus, gradient=False).weight[0] == -1
    assert preparer.table(axis, gradient=False).outputs == 4
    assert preparer.table(axis, gradient=True).outputs == 8
    kept, lost = (preparer.table(each, gradient=False) for each in (axis, large))
    assert preparer.table(axis, gradient=False) is kept
    assert preparer.table(large, gradient=False) is not lost


def test_what_takes_several_steps_or_is_held_whole_is_in_no_batch():
    case = halves(8, slab=1 << 10)
    turned = replace(case.result, strides=(1, 3, 12))
    assert case.evaluation().most_at_once > 0
    assert replace(case, slab=100).evaluation().most_at_once == 0
    assert replace(case, result=turned).evaluation().most_at_once == 0
    bench = workbench("numpy_cpu")
    assert bench.takes(case.evaluation())
    assert not bench.takes(halves(256).evaluation())


def test_a_batch_fits_into_a_slab():
    plan = Plan.build([maps.area(8, 4)], (8,))
    for slab, most in ((12, 1), (47, 1), (48, 4), (12 * 64, 64), (1 << 20, 64)):
        assert Case.packed(plan, slab).evaluation().most_at_once == most


@needs_numba
@pytest.mark.parametrize(("strides", "most"), [((0, 0), 1), ((1, 0), 8), ((96, 1), 1)])
def test_large_steps_hold_no_more_memory_than_small_ones(strides, most):
    halves = [maps.area(size, size // 2) for size in (64, 96)]
    plan, float32 = Plan.build(halves, (64, 96)), np.dtype(np.float32)
    source = TensorSpec(float32, plan.input_shape, strides)
    case = Case(plan, source, TensorSpec.packed(float32, plan.output_shape), 8 * 96 + 4 * 96)
    data = data_for(source)
    result, steps = _run(case.evaluation(), data, compiled(1))
    np.testing.assert_array_equal(result, expected(case, data))
    # Tensors with one number in a row would be written out row by row.
    assert (steps == 1) == (most == 1)
    assert len(list(case.evaluation().steps())) >= most
