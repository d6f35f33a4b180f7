"""Compiled kernels read and write nothing but the tensors that they are given."""

from __future__ import annotations

import signal

import pytest

from support.kernels.numba_calls import needs_numba, run_program


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize(
    "check",
    [
        "check_guarded_cases",
        pytest.param("check_guarded_streams", marks=pytest.mark.heavy),
        "check_guarded_sums",
    ],
)
def test_nothing_before_or_beyond_a_tensor_is_read_or_written(check: str) -> None:
    done = run_program(f"from support.kernels import numba_calls\nnumba_calls.{check}()")
    assert done.returncode == 0, done.stderr


def test_who_touches_what_lies_beyond_guarded_memory_ends() -> None:
    program = """from support.kernels import numba_calls
numba_calls.GuardedMemory(1).touch(beyond={})"""
    inside, outside = (run_program(program.format(place)) for place in (-1, 0))
    assert inside.returncode == 0, inside.stderr
    assert outside.returncode == -signal.SIGSEGV


@needs_numba
def test_the_last_block_of_a_plane_reads_no_other_plane() -> None:
    """Before, it read as far before its buffers as the plane is long: an address of nobody's."""
    program = """
import numpy as np
from gradwire import ops
from gradwire_server import LocalClient
operator = ops.Interpolate(mode="nearest", sizes=(4, 10001, 12), data_format="NCX")
x = np.arange(3 * 20000 * 96, dtype=np.float32).reshape(1, 1, 3, 20000, 96)
compiled, plain = (
    LocalClient(name, threads=2).evaluate(operator, x) for name in ("numba_cpu", "numpy_cpu")
)
assert compiled.tobytes() == plain.tobytes()
"""
    done = run_program(program)
    assert done.returncode == 0, done.stderr
