"""PyTorch's operators: sizes, and weights that are stored, of the installed one, bit for bit."""

from __future__ import annotations

import importlib.metadata
import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from gradwire_server.errors import TableTooLargeError
from support.oracles import torch_axes
from support.oracles.dialect_oracles import DTYPES, ExactTaps, Tensor, evaluate, f32, lowered, ulp
from support.oracles.torch_axes import NOT_ADJOINT, RANKS, AxisCase, check, random_case

Shape = tuple[int, ...]


SIZES: list[tuple[dict[str, Any], Shape, Shape]] = [
    ({"size": 5}, (2, 3, 4, 7, 1), (2, 3, 5, 5, 5)),
    ({"size": (5, 6)}, (2, 3, 4, 7), (2, 3, 5, 6)),
    ({"scale_factor": 1.7}, (2, 3, 4, 7), (2, 3, 6, 11)),
    # float64, truncated: 0.29 * 100 is 28.999999999999996.
    ({"scale_factor": 0.29}, (1, 1, 100), (1, 1, 28)),
    ({"scale_factor": 0.29, "recompute_scale_factor": True}, (1, 1, 100), (1, 1, 28)),
    ({"scale_factor": 0.7, "mode": "area"}, (1, 1, 10), (1, 1, 7)),
]


@pytest.mark.parametrize(("given", "source", "result"), SIZES, ids=str)
def test_the_output_has_the_size_that_pytorch_gives_it(
    given: dict[str, Any], source: Shape, result: Shape
) -> None:
    operator = ops.TorchInterpolate(**given)
    assert dialects.output_shape(operator.name, operator, source) == result
    assert lowered(operator, source, result).output_shape == result


def test_a_wide_band_counts_before_it_is_built() -> None:
    operator = ops.TorchUpsampleBackward(mode="area")
    with pytest.raises(TableTooLargeError):
        lowered(operator, (1, 1, 3), (1, 1, 2**40), max_float32_axis=2**62)


def test_a_table_of_many_blocks_is_the_table_of_one() -> None:
    operator = ops.TorchInterpolate(mode="bicubic", antialias=True, size=(90_000, 3))
    long = lowered(operator, (1, 1, 300_000, 3), (1, 1, 90_000, 3))
    bands = long.passes[0].map
    # The scale is 10 / 3 exactly: every third output reads alike, ten inputs on.
    inside = slice(300, 89_700)
    np.testing.assert_array_equal(bands.start[inside][3:], bands.start[inside][:-3] + 10)
    sums = np.add.reduceat(bands.weight, bands.offset[:-1])
    assert np.abs(sums - 1).max() < 2.0**-20


def test_the_gradient_of_area_is_added_in_float32_whatever_the_type() -> None:
    ones = np.ones((1, 1, 96, 96), ml_dtypes.bfloat16)
    result = evaluate(ops.TorchUpsampleBackward(mode="area"), ones, (1, 1, 2, 2))
    assert float(result.astype(np.float64).sum()) == 96 * 96


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


CORNERS = Path(__file__).parents[1] / "data" / "torch_align_corners.npz"


@dataclass(frozen=True, slots=True)
class CornersCase:
    """One gradient of F.interpolate(align_corners=True); tensors hold dtype's values, widened."""

    mode: Any
    dtype: str
    output_gradient: Tensor
    input_gradient: Tensor


@cache
def cases() -> list[CornersCase]:
    with np.load(CORNERS) as stored:
        return [
            CornersCase(
                case["mode"],
                case["dtype"],
                stored[f"output_gradient_{i}"],
                stored[f"input_gradient_{i}"],
            )
            for i, case in enumerate(json.loads(str(stored["about"]))["cases"])
        ]


def check_corners(case: CornersCase, expected: Tensor) -> None:
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
    check_corners(case, case.input_gradient)


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
        check_corners(case, x.grad.double().numpy())


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_one_output_reads_the_first_input(mode: Any) -> None:
    operator = ops.InterpolateBackward(
        mode=mode, coordinate_transformation_mode="align_corners", data_format="NCX"
    )
    result = evaluate(operator, f32([[[7]]]), (1, 1, 4))
    np.testing.assert_array_equal(result, f32([[[7, 0, 0, 0]]]))
