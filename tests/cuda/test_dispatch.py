"""From plans to programs for CUDA: kernels, buffers, grids and their limits."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire_server.backends import compute_dtype
from gradwire_server.backends.cuda import launches, programs
from gradwire_server.backends.cuda.programs import Buffer, X, Y, every_kernel
from gradwire_server.plans import BandedMap, Plan
from support.kernels import cuda_device
from support.kernels import kernel_maps as maps
from support.oracles import oracles

SINGLE = np.dtype(np.float32)

X2, X4 = maps.linear(64, 128).adjoint(), maps.linear(64, 256).adjoint()
NARROW, ODD = maps.linear(9, 18).adjoint(), maps.linear(65, 130).adjoint()
CUBIC, NEAREST = maps.cubic(64, 128).adjoint(), maps.nearest(64, 128).adjoint()
FAR, UP = maps.linear(4, 400).adjoint(), maps.linear(64, 100)
HALVED, NEAREST_HALVED = maps.linear(64, 32).adjoint(), maps.nearest(64, 32).adjoint()


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
def test_each_kind_of_plan_has_its_kernels(axes, expected):
    """Along some axes there are maps, and nothing along others, given by length."""
    bands = [None if isinstance(one, int) else one for one in axes]
    shape = tuple(one if isinstance(one, int) else one.inputs for one in axes)
    program = cuda_device.program(Plan.build(bands, shape), SINGLE, SINGLE)
    assert [launch.kernel for launch in program.launches] == expected


LENGTHS = st.integers(1, 300) | st.integers(1, 2**33)
FORMATS = [one for dtype in oracles.STORAGE_TYPES for one in programs.formats(dtype)]


@given(
    plan=oracles.plans(),
    formats=st.sampled_from(FORMATS),
    multiprocessors=st.sampled_from([1, 132]),
)
def test_launches_read_what_is_there_and_write_it_all(plan, formats, multiprocessors):
    assume(plan.passes)
    assume(math.prod(plan.output_shape))
    program = cuda_device.program(plan, *formats, multiprocessors=multiprocessors)
    tables, scratch = set(program.tables), set(program.scratch)
    written, used = {X}, set()
    for launch in program.launches:
        _keeps_the_limits(launch)
        result, *others = (one for one in launch.arguments if isinstance(one, Buffer))
        assert result != X
        assert Y not in others
        assert written | tables >= set(others)
        written.add(result)
        used |= {result, *others}
    assert Y in written
    assert used - {X, Y} == tables | scratch
    assert len(scratch) <= 2
    room = plan.largest_intermediate * compute_dtype(formats[0]).itemsize
    assert all(0 < nbytes <= room for nbytes in program.scratch.values())


def _keeps_the_limits(launch):
    x, y, z = launch.grid
    assert 1 <= x <= 2**31 - 1
    assert (y, z) == (1, 1)
    assert math.prod(launch.block) == launches.THREADS
    assert launch.kernel in every_kernel()


@pytest.mark.parametrize("rows", [2**31, 2**33])
def test_a_tensor_of_very_many_rows_is_one_launch_or_refused(rows):
    plan = Plan.build([None, X2, None], (rows, 128, 64))
    try:
        program = cuda_device.program(plan, SINGLE, SINGLE)
    except ValueError as error:
        assert "too many for one launch" in str(error)  # noqa: PT017 - either will do
    else:
        for launch in program.launches:
            _keeps_the_limits(launch)


def test_more_channels_than_32_bits_count_take_one_axis_at_a_time():
    small = maps.linear(2, 4).adjoint()
    plan = Plan.build([small, small, None], (4, 4, 2**31 + 16))
    program = cuda_device.program(plan, SINGLE, SINGLE)
    assert [one.kernel for one in program.launches] == ["axis_pass<float, float, 4>"] * 2


def test_a_map_beyond_32_bits_is_refused():
    huge = BandedMap(1, 2**31, np.array([2**31 - 1]), np.array([0, 1]), np.array([0.5]))
    with pytest.raises(ValueError, match="2147483648 inputs"):
        cuda_device.program(Plan.build([huge], (2**31,)), SINGLE, SINGLE)


@given(jobs=LENGTHS, per_block=st.sampled_from([1, 8, 16, 256]))
def test_a_grid_holds_every_job_and_no_idle_block(jobs, per_block):
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
