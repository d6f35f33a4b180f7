"""align_corners against PyTorch, the one framework whose gradient of it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradwire import ops
from support.oracles.dialect_oracles import ExactTaps, Tensor, evaluate, f32, ulp

STORED = Path(__file__).parents[1] / "data" / "torch_align_corners.npz"

DTYPES: dict[str, Any] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One gradient of F.interpolate(align_corners=True); tensors hold dtype's values, widened."""

    mode: Any
    dtype: str
    output_gradient: Tensor
    input_gradient: Tensor


@cache
def cases() -> list[Case]:
    """Read what make_torch_vectors.py wrote."""
    with np.load(STORED) as stored:
        return [
            Case(
                case["mode"],
                case["dtype"],
                stored[f"output_gradient_{i}"],
                stored[f"input_gradient_{i}"],
            )
            for i, case in enumerate(json.loads(str(stored["about"]))["cases"])
        ]


def check(case: Case, expected: Tensor) -> None:
    """Compare our gradient with torch's.

    torch rounds (src - 1) / (dst - 1) first, which moves a weight by up to 4 * 2**-24 * src, and
    both sides round to the storage type.
    """
    dtype = DTYPES[case.dtype]
    operator = ops.InterpolateBackward(
        mode=case.mode, coordinate_transformation_mode="align_corners", data_format="NCX"
    )
    given = case.output_gradient.astype(dtype)
    result = evaluate(operator, given, expected.shape).astype(np.float64)

    terms = reach = np.abs(case.output_gradient).astype(np.float64)
    for axis in range(2, terms.ndim):
        src, dst = expected.shape[axis], given.shape[axis]
        taps = ExactTaps.of(src, dst, align_corners=True, nearest=False)
        reach = taps.reach(reach, axis, weight_error=4 * 2.0**-24 * src)
        terms = taps.transpose_apply(terms, axis)
    allowed = (reach - terms) + 2.0**-21 * terms + ulp(expected, dtype)
    assert np.all(np.abs(result - expected) <= allowed)


@pytest.mark.parametrize("number", range(60))
def test_stored_gradients_of_torch_are_reproduced(number: int) -> None:
    case = cases()[number]
    check(case, case.input_gradient)


def test_the_stored_gradients_are_all_tested() -> None:
    assert len(cases()) == 60


def test_gradients_of_the_installed_torch_are_reproduced() -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
    for case in cases():
        dtype = getattr(torch, case.dtype)
        x = torch.zeros(case.input_gradient.shape, dtype=dtype, requires_grad=True)
        y = torch.nn.functional.interpolate(
            x, case.output_gradient.shape[2:], mode=case.mode, align_corners=True
        )
        y.backward(torch.from_numpy(case.output_gradient).to(dtype))
        check(case, x.grad.double().numpy())


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_one_output_reads_the_first_input(mode: Any) -> None:
    operator = ops.InterpolateBackward(
        mode=mode, coordinate_transformation_mode="align_corners", data_format="NCX"
    )
    result = evaluate(operator, f32([[[7]]]), (1, 1, 4))
    np.testing.assert_array_equal(result, f32([[[7, 0, 0, 0]]]))
