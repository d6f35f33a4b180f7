"""Bytes are damaged on their way, and no call with checksums gets other bits or hangs."""

from __future__ import annotations

import pytest

from chaos.checksums import run


@pytest.mark.parametrize(
    "calls", [60, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.heavy])]
)
def test_no_damaged_result_is_taken(calls: int) -> None:
    outcome = run(calls, seed=calls)
    assert outcome.damaged
    assert outcome.failed < outcome.calls
    assert outcome.right, outcome
