"""From plans to programs for CUDA: which kernels, on which buffers, in which grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire_server.backends import compute_dtype
from gradwire_server.backends.cuda import dispatch, launches, programs
from gradwire_server.backends.cuda.launches import Stage
from gradwire_server.backends.cuda.programs import (
    Buffer,
    Launch,
    Program,
    X,
    Y,
    every_kernel,
    packed,
)
from gradwire_server.plans import BandedMap, Pass, Plan
from support.kernels import kernel_maps as maps
from support.oracles import oracles

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)

Dtype = np.dtype[np.generic]


def grown(kind: Callable[[int, int], BandedMap], inputs: int, scale: int) -> BandedMap:
    """Return the map of the gradient of an upsampling."""
    return kind(inputs, inputs * scale).adjoint()


def launched(
    axes: Sequence[BandedMap | int], dtype: Dtype = SINGLE, result: Dtype | None = None
) -> list[str]:
    """Return the kernels for maps along some axes and nothing along others, given by length."""
    bands = [None if isinstance(one, int) else one for one in axes]
    shape = tuple(one if isinstance(one, int) else one.inputs for one in axes)
    program = dispatch.program(Plan.build(bands, shape), dtype, result or dtype)
    return [launch.kernel.expression for launch in program.launches]


X2, X4 = grown(maps.linear, 64, 2), grown(maps.linear, 64, 4)
NARROW = grown(maps.linear, 9, 2)
ODD = grown(maps.linear, 65, 2)
CUBIC = grown(maps.cubic, 64, 2)
NEAREST = grown(maps.nearest, 64, 2)
FAR = grown(maps.linear, 4, 100)
NEAREST_HALVED = maps.nearest(64, 32).adjoint()
HALVED, UP = maps.linear(64, 32).adjoint(), maps.linear(64, 100)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ([2, 3, X2, X2], ["march_steps<float, float, 2, 1>"]),
        ([2, 3, X4, X4], ["march_steps<float, float, 4, 2>"]),
        ([2, 3, CUBIC, CUBIC], ["march_steps<float, float, 2, 3>"]),
        ([2, 3, NEAREST, NEAREST], ["march_steps<float, float, 2, 0>"]),
        ([2, 3, X2, X4], ["march_rows<float, float, 4, 8>"]),
        ([2, 3, ODD, ODD], ["march_rows<float, float, 4, 4>"]),
        ([2, 3, NARROW, NARROW], ["march_rows<float, float, 1, 4>"]),
        ([2, X2, X2, 8], ["march_channels<float, float, 4, 2>"]),
        ([2, CUBIC, CUBIC, 8], ["march_channels<float, float, 4, 4>"]),
        ([2, X2, X2, 3], ["march_rows<float, float, 4, 4>"]),
        ([2, X2, X2, 131], ["march_channels<float, float, 1, 2>"]),
        ([2, HALVED, HALVED], ["gather_taps<float, float, 1>"]),
        ([2, HALVED, HALVED, 3], ["gather_taps<float, float, 1>"]),
        ([2, UP, UP], ["gather_taps<float, float, 2>"]),
        ([2, UP, UP, 131], ["gather_taps<float, float, 2>"]),
        ([2, UP, maps.linear(64, 49)], ["march_rows<float, float, 4, 4>"]),
        ([2, FAR, FAR], ["axis_pass<float, float, 4>", "contiguous_pass<float, float>"]),
        ([2, X2], ["march_rows<float, float, 4, 4>"]),
        ([2, X2, 8], ["axis_pass<float, float, 4>"]),
        ([2, X2, 7], ["axis_pass<float, float, 1>"]),
        ([2, X2, X2, X2], ["axis_pass<float, float, 4>", "march_steps<float, float, 2, 1>"]),
        ([X2, 5, X2], ["axis_pass<float, float, 4>", "march_rows<float, float, 4, 4>"]),
        ([2, maps.nearest(64, 128), maps.nearest(8, 12)], ["select_inputs<unsigned int, 1>"]),
        ([2, maps.nearest(64, 32).adjoint(), 8], ["select_inputs<unsigned int, 4>"]),
        ([2, NEAREST_HALVED, NEAREST_HALVED], ["gather_taps<float, float, 1>"]),
        ([2, NEAREST_HALVED, NEAREST_HALVED, 8], ["select_inputs<unsigned int, 4>"]),
    ],
)
def test_each_kind_of_plan_has_its_kernels(
    axes: list[BandedMap | int], expected: list[str]
) -> None:
    assert launched(axes) == expected


def test_results_between_launches_have_the_compute_type() -> None:
    assert launched([2, X2, X2, X2], HALF) == [
        "axis_pass<__half, float, 8>",
        "march_steps<float, __half, 2, 1>",
    ]
    assert launched([2, X2, X2], HALF, SINGLE) == ["march_rows<__half, float, 4, 4>"]
    assert launched([2, X2, X2], SINGLE, HALF) == ["march_steps<float, __half, 2, 1>"]


FORMATS = [one for dtype in oracles.STORAGE_TYPES for one in programs.formats(dtype)]


@given(
    plan=oracles.plans(),
    formats=st.sampled_from(FORMATS),
    outer=st.integers(1, 3),
    multiprocessors=st.sampled_from([1, 132]),
)
def test_launches_read_what_is_there_and_write_it_all(
    plan: Plan, formats: programs.Format, outer: int, multiprocessors: int
) -> None:
    assume(plan.passes)
    assume(math.prod(plan.output_shape))
    program = dispatch.program(plan, *formats, outer=outer, multiprocessors=multiprocessors)
    written, whole = {X}, False
    for launch in program.launches:
        _keeps_the_limits(launch)
        result, *others = (one for one in launch.arguments if isinstance(one, Buffer))
        assert result != X
        for one in others:
            assert one in written or one.place == "table"
            assert one != Y
        written.add(result)
        whole |= result == Y
    assert whole
    _has_its_buffers(program)


def _keeps_the_limits(launch: Launch) -> None:
    x, y, z = launch.grid
    assert 1 <= x <= 2**31 - 1
    assert (y, z) == (1, 1)
    assert math.prod(launch.block) == launches.THREADS
    assert launch.kernel in every_kernel()


def _has_its_buffers(program: Program) -> None:
    """Every table and every scratch buffer is there, and is read."""
    used = {
        one for launch in program.launches for one in launch.arguments if isinstance(one, Buffer)
    }
    assert {one for one in used if one.place == "table"} == {
        Buffer("table", number) for number in range(len(program.tables))
    }
    assert {one for one in used if one.place == "scratch"} == {
        Buffer("scratch", number) for number in range(len(program.scratch))
    }


@given(plan=oracles.plans(), formats=st.sampled_from(FORMATS))
def test_scratch_holds_every_result_between_launches(plan: Plan, formats: programs.Format) -> None:
    assume(plan.passes)
    assume(math.prod(plan.output_shape))
    program = dispatch.program(plan, *formats)
    room = plan.largest_intermediate * compute_dtype(formats[0]).itemsize
    assert 0 not in program.scratch
    assert max(program.scratch, default=0) <= room
    assert len(program.scratch) <= 2


def test_arguments_become_addresses_and_numbers() -> None:
    (launch,) = dispatch.program(Plan.build([None, X2], (3, 128)), SINGLE, SINGLE).launches
    buffers = [one for one in launch.arguments if isinstance(one, Buffer)]
    addresses = {one: 4096 * number for number, one in enumerate(dict.fromkeys(buffers), 1)}
    resolved = launch.resolved(addresses)
    assert [type(one) for one in resolved[:2]] == [np.uint64, np.uint64]
    assert [int(one) for one in resolved[:2]] == [addresses[Y], addresses[X]]
    assert len(resolved) == len(launch.arguments)
    assert not any(isinstance(one, Buffer) for one in resolved)


@pytest.mark.parametrize("dtype", oracles.STORAGE_TYPES, ids=str)
def test_the_fill_arrives_as_bits_of_the_type_written(dtype: Dtype) -> None:
    bands = BandedMap(2, 1, np.array([0, 0]), np.array([0, 1, 1]), np.array([0.5]))
    plan = Plan.build([None, bands], (3, 1), fill=1 / 3)
    (launch,) = dispatch.program(plan, dtype, dtype).launches
    assert isinstance(launch.arguments[-1], np.generic)
    bits = np.array([launch.arguments[-1]])
    assert bits.itemsize == dtype.itemsize
    np.testing.assert_array_equal(bits.view(dtype), np.array([1 / 3]).astype(dtype))


def test_outputs_that_an_earlier_pass_leaves_empty_are_filled_at_the_end() -> None:
    sparse = maps.nearest(6, 3).adjoint()
    plan = Plan((3, 8), (6, 4), (Pass(0, sparse), Pass(1, maps.linear(8, 4))), fill=2.0)
    reversed_plan = Plan((3, 8), (6, 4), (Pass(1, maps.linear(8, 4)), Pass(0, sparse)), fill=2.0)
    last = [
        dispatch.program(one, HALF, HALF).launches[-1].kernel.expression
        for one in (plan, reversed_plan)
    ]
    # One launch has both axes; of two, the last does not know of the first's.
    assert last == ["march_rows<__half, __half, 1, 4>", "axis_pass<float, __half, 4>"]
    chained = Plan((3, 8, 5, 8), (6, 8, 5, 4), (Pass(0, sparse), Pass(3, maps.linear(8, 4))))
    assert [one.kernel.source for one in dispatch.program(chained, HALF, HALF).launches] == [
        "axis_pass.cu",
        "march_rows.cu",
        "fill_bands.cu",
    ]


def test_equal_maps_share_their_tables() -> None:
    once = dispatch.program(Plan.build([None, X2, None], (2, 128, 5)), SINGLE, SINGLE)
    twice = dispatch.program(Plan.build([X2, None, X2, None], (128, 3, 128, 5)), SINGLE, SINGLE)
    assert len(once.tables) == len(twice.tables) == 3


@pytest.mark.parametrize("rows", [2**31, 2**33])
def test_a_tensor_of_very_many_rows_is_one_launch_or_refused(rows: int) -> None:
    plan = Plan.build([None, X2, None], (rows, 128, 64))
    try:
        program = dispatch.program(plan, SINGLE, SINGLE)
    except ValueError as error:
        assert "too many for one launch" in str(error)  # noqa: PT017 - either will do
    else:
        for launch in program.launches:
            _keeps_the_limits(launch)


def test_more_channels_than_32_bits_count_take_one_axis_at_a_time() -> None:
    small = grown(maps.linear, 2, 2)
    assert launched([small, small, 2**31 + 16]) == ["axis_pass<float, float, 4>"] * 2


def test_a_map_beyond_32_bits_is_refused() -> None:
    huge = BandedMap(1, 2**31, np.array([2**31 - 1]), np.array([0, 1]), np.array([0.5]))
    with pytest.raises(ValueError, match="2147483648 inputs"):
        dispatch.program(Plan.build([huge], (2**31,)), SINGLE, SINGLE)


@given(bands=oracles.banded_maps(), axis=st.integers(0, 2), data=st.data())
def test_an_accumulation_is_one_launch_in_place(
    bands: BandedMap, axis: int, data: st.DataObject
) -> None:
    shape = [2, 3, 4]
    shape[axis] = bands.inputs
    carried = data.draw(st.integers(0, bands.outputs))
    program = dispatch.accumulation(bands, shape, SINGLE, axis=axis, carried=carried)
    (launch,) = program.launches
    assert launch.arguments[:2] == (Y, X)
    numbers = [one for one in launch.arguments if not isinstance(one, Buffer)]
    assert carried in [one for one in numbers if one.dtype == np.int32]
    assert not program.scratch


@given(sizes=st.lists(st.integers(0, 1000), max_size=6))
def test_packed_buffers_are_aligned_and_apart(sizes: list[int]) -> None:
    offsets, total = packed(sizes)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(offset % 128 == 0 for offset in offsets)
    assert all(
        end <= begin
        for (_, end), (begin, _) in pairwise([*zip(offsets, ends, strict=True), (total, total)])
    )


STAGE = Stage(132, (SINGLE, SINGLE))
LENGTHS = st.one_of(st.integers(1, 300), st.integers(1, 2**33))


@given(jobs=LENGTHS, per_block=st.sampled_from([1, 8, 16, 256]))
def test_a_grid_holds_every_job_and_no_idle_block(jobs: int, per_block: int) -> None:
    try:
        x, y, z = launches.blocks(jobs, per_block=per_block)
    except ValueError:
        # Threads must be able to number jobs in 32 bits, also those of the last block.
        assert jobs > 2**32 - 256 or jobs > per_block * (2**31 - 1)
        return
    assert (y, z) == (1, 1)
    assert 1 <= x <= 2**31 - 1
    assert (x - 1) * per_block < jobs <= x * per_block
    assert x * per_block <= 2**32


@given(numbers=st.integers(1, 2**40))
def test_threads_that_loop_have_a_grid_of_any_device(numbers: int) -> None:
    gaps = BandedMap(2, 1, np.array([0, 0]), np.array([0, 1, 1]), np.array([1.0]))
    x, y, z = launches.fill_bands(STAGE, gaps, outer=numbers, inner=1).grid
    assert (y, z) == (1, 1)
    assert 1 <= x <= min(-(-numbers // launches.THREADS), 2**31 - 1)


@given(outputs=LENGTHS, threads=st.integers(1, 2**31))
def test_strips_are_long_enough_to_be_numbered_in_32_bits(outputs: int, threads: int) -> None:
    assert STAGE.strips(outputs, threads=threads)[1] <= 2**32 - 256


@given(vectors=st.integers(1, 2**29), overlap=st.booleans())
def test_tiles_of_a_row_cover_it_and_overlap_where_they_read_their_neighbors(
    *, vectors: int, overlap: bool
) -> None:
    lanes, margin, tiles = launches.step_tiles(vectors, overlap=overlap)
    assert 1 <= lanes <= launches.WARP
    assert margin == int(overlap and lanes < vectors)
    written = lanes - 2 * margin
    assert (tiles - 1) * written < vectors <= tiles * written
    assert tiles == 1 or margin == int(overlap)


@given(
    bands=oracles.banded_maps(), step=st.sampled_from([1, 2, 4]), halo=st.sampled_from([0, 1, 2])
)
def test_a_map_has_steps_if_it_reads_all_that_they_say_and_nothing_else(
    bands: BandedMap, step: int, halo: int
) -> None:
    expected = step * bands.outputs == bands.inputs and all(
        [
            one
            for one in range(step * output - halo, step * (output + 1) + halo)
            if 0 <= one < bands.inputs
        ]
        == list(range(bands.start[output], bands.stop[output]))
        for output in range(bands.outputs)
    )
    assert launches.has_steps(bands, step, halo) == expected


@given(bands=oracles.banded_maps(), inputs=st.integers(1, 12), outputs=st.integers(1, 5))
def test_tiles_split_the_outputs_and_read_few_inputs(
    bands: BandedMap, inputs: int, outputs: int
) -> None:
    begins = launches.tile_starts(bands, most_inputs=inputs, most_outputs=outputs)
    widest = int(bands.counts.max(initial=0))
    assert (begins is None) == (widest > inputs)
    if begins is None:
        return
    assert begins[0] == 0
    assert begins[-1] == bands.outputs
    for first, stop in pairwise(begins):
        assert 1 <= stop - first <= outputs
        low, high = bands.start[first:stop].min(), bands.stop[first:stop].max()
        assert high - low <= inputs
