"""PyTorch's weights: those of torch 2.13 that are stored, and the installed one's, bit for bit."""

from __future__ import annotations

import importlib.metadata
import random

import numpy as np
import pytest

from gradwire import ops
from support.oracles import torch_axes
from support.oracles.dialect_oracles import Tensor, evaluate
from support.oracles.torch_axes import NOT_ADJOINT, RANKS, AxisCase, check, random_case

STORED = {str(stored[0]): stored for stored in torch_axes.stored()}


def torch_213() -> None:
    """Skip where the weights that are tested are not installed: they change with releases."""
    pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
    version = importlib.metadata.version("torch")
    if not version.startswith("2.13."):
        pytest.skip(f"compares with torch 2.13; {version} is installed")


@pytest.mark.parametrize(("case", "forward", "backward"), STORED.values(), ids=list(STORED))
def test_stored_weights_are_reproduced(case: AxisCase, forward: Tensor, backward: Tensor) -> None:
    check(case, forward, backward)


def test_enough_of_every_mode_and_type_is_stored() -> None:
    kinds = [(case.mode, case.dtype) for case, _, _ in STORED.values()]
    for mode in RANKS:
        for dtype in ("float32", "float64"):
            assert kinds.count((mode, dtype)) >= 5


@pytest.mark.parametrize("case", NOT_ADJOINT, ids=str)
def test_where_pytorch_has_two_tables_there_are_two(case: AxisCase) -> None:
    forward, backward = case.ours()
    assert not np.array_equal(forward, backward)


@pytest.mark.parametrize("mode", RANKS)
def test_weights_of_the_installed_torch_are_reproduced(mode: str) -> None:
    torch_213()
    rng = random.Random(mode)  # noqa: S311 - a choice of cases
    for _ in range(300):
        case = random_case(rng, mode)
        check(case, *case.theirs())


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_every_pair_of_short_lengths_reads_what_the_installed_torch_reads(mode: str) -> None:
    torch_213()
    for inputs in range(1, 33):
        for outputs in range(1, 65):
            case = AxisCase(mode, 3, "float32", inputs, outputs, None, {})
            check(case, *case.theirs())


def test_width_1_antialiased_is_computed_as_any_other() -> None:
    # torch 2.13 gives every row the first row's mean; see test_torch_live.
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    op = ops.TorchInterpolate(mode="bilinear", antialias=True, size=(2, 1))
    narrow = evaluate(op, x, (1, 1, 2, 1))
    wide = evaluate(
        ops.TorchInterpolate(mode="bilinear", antialias=True, size=(2, 2)),
        x.repeat(2, axis=3),
        (1, 1, 2, 2),
    )
    np.testing.assert_array_equal(narrow, wide[..., :1])
