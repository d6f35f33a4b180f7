"""Compiled kernels read and write nothing but the tensors that they are given."""

from __future__ import annotations

import signal

import pytest

from numba_here import needs_numba, run_program


@needs_numba
@pytest.mark.parametrize("check", ["check_guarded_cases", "check_guarded_sums"])
def test_nothing_before_or_beyond_a_tensor_is_read_or_written(check: str) -> None:
    done = run_program(f"import guarded_memory\nguarded_memory.{check}()")
    assert done.returncode == 0, done.stderr


def test_who_touches_what_lies_beyond_guarded_memory_ends() -> None:
    program = "import guarded_memory\nguarded_memory.GuardedMemory(1).touch(beyond={})"
    inside, outside = (run_program(program.format(place)) for place in (-1, 0))
    assert inside.returncode == 0, inside.stderr
    assert outside.returncode == -signal.SIGSEGV
