"""oneDNN's operators: arithmetic and sizes, results of the library, and the cases of its tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import (
    ExactTaps,
    Matrix,
    Tensor,
    evaluate,
    f32,
    gradient,
    ulp,
)

Sizes = tuple[int, ...]


def backward(mode: Any = "linear", **attributes: Any) -> ops.InterpolateBackward:
    return ops.InterpolateBackward(mode=mode, data_format="NCX", **attributes)


def interpolate(mode: Any = "linear", **attributes: Any) -> ops.Interpolate:
    return ops.Interpolate(mode=mode, data_format="NCX", **attributes)


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
@pytest.mark.parametrize(
    ("mode", "expected"), [("nearest", [[0, 3], [9, 24]]), ("bilinear", [[3, 6], [12, 15]])]
)
def test_the_numbers_of_the_library_s_unit_tests_hold(
    transformation: Any, mode: str, expected: list[list[int]]
) -> None:
    operator = backward(mode, coordinate_transformation_mode=transformation)
    given = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    result = evaluate(operator, given, (1, 1, 2, 2))
    np.testing.assert_allclose(result, f32([[expected]]), rtol=2**-22)


def test_linear_bilinear_and_trilinear_are_synonyms_on_any_rank() -> None:
    given = np.random.default_rng(2).standard_normal((2, 3, 7, 5), np.float32)
    expected = evaluate(backward("linear"), given, (2, 3, 4, 9))
    for synonym in ("bilinear", "trilinear"):
        np.testing.assert_array_equal(evaluate(backward(synonym), given, (2, 3, 4, 9)), expected)


SIZES: list[tuple[ops.Operator, Sizes, Sizes | None]] = [
    # The product is float32's: in float64 10 * 0.7f would be 6.99..., and 100 * 0.29f 28.99....
    *(
        (interpolate(scales=(scale,)), (2, 3, src), (2, 3, dst))
        for scale, src, dst in [
            (0.7, 10, 7),
            (0.29, 100, 29),
            (1.6666666, 3, 5),
            (2, 5, 10),
            (0.583333, 12, 6),
            (0.1, 10, 1),
        ]
    ),
    (interpolate(scales=(0.583333,), sizes=(7,)), (2, 3, 12), (2, 3, 7)),
    (interpolate(sizes_tensor=(7,)), (2, 3, 12), (2, 3, 7)),
    (ops.Interpolate(mode="linear", sizes=(5, 6)), (2, 3, 4, 7), (2, 5, 6, 7)),
    (interpolate(sizes=(5, 6)), (2, 7, 3, 4), (2, 7, 5, 6)),
    (backward(sizes=(8,)), (1, 1, 8), None),
]


@pytest.mark.parametrize(("operator", "source", "result"), SIZES, ids=str)
def test_sizes_are_those_given_or_scaled(
    operator: ops.Operator, source: Sizes, result: Sizes | None
) -> None:
    assert dialects.output_shape(operator.name, operator, source) == result


DATA = Path(__file__).parents[1] / "data"
DTYPES: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

SEQUENCES = {"src_shape", "dst_shape", "sizes", "scales"}


@dataclass(frozen=True, slots=True)
class Case:
    """One call of InterpolateBackward; shapes are batch, channel, spatial in any format."""

    source: str
    mode: Any
    data_format: Any
    dtype: str
    src_shape: tuple[int, ...]
    dst_shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Case:
        values: dict[str, Any] = {
            name: tuple(value) if name in SEQUENCES else value for name, value in fields.items()
        }
        return cls(**values)

    def __str__(self) -> str:
        src, dst = ("x".join(map(str, shape)) for shape in (self.src_shape, self.dst_shape))
        return f"{self.mode}-{self.data_format}-{self.dtype}-{src}-to-{dst}"

    @property
    def operator(self) -> ops.InterpolateBackward:
        return ops.InterpolateBackward(
            mode=self.mode, data_format=self.data_format, sizes=self.sizes, scales=self.scales
        )

    def evaluate(self, diff_dst: Tensor) -> Tensor:
        if self.data_format == "NCX":
            return evaluate(self.operator, diff_dst, self.src_shape)
        n, c, *x = self.src_shape
        result = evaluate(self.operator, np.moveaxis(diff_dst, 1, -1), (n, *x, c))
        return np.moveaxis(result, -1, 1)

    def weight_error(self, axis: int) -> float:
        """Return how far float32 coordinates may be off: three roundings of numbers up to src."""
        return 0 if self.mode == "nearest" else 3 * 2.0**-24 * self.src_shape[axis]

    def taps(self) -> list[ExactTaps]:
        """Return exact taps of the spatial axes."""
        return [
            ExactTaps.of(src, dst, align_corners=False, nearest=self.mode == "nearest")
            for src, dst in zip(self.src_shape[2:], self.dst_shape[2:], strict=True)
        ]


@cache
def library_results() -> list[tuple[Case, Tensor, Tensor]]:
    """Read 258 results of oneDNN 3.2 on a CPU: case, diff_dst, diff_src, bfloat16 widened."""
    with np.load(DATA / "onednn_backward.npz") as stored:
        cases = json.loads(str(stored["cases"]))
        return [
            (Case.of(case), stored[f"diff_dst_{i}"], stored[f"diff_src_{i}"])
            for i, case in enumerate(cases)
        ]


@cache
def all_cases() -> list[Case]:
    """Read the 709 cases of oneDNN's own tests."""
    stored = json.loads((DATA / "onednn_cases.json").read_text())
    return [Case.of(dict(zip(stored["fields"], row, strict=True))) for row in stored["cases"]]


def signature(case: Case) -> tuple[object, ...]:
    return (case.mode, case.data_format, case.dtype, case.src_shape, case.dst_shape)


def cases_without_result() -> list[Case]:
    """Return one case of each signature that the library's results do not cover."""
    covered = {signature(case) for case, _, _ in library_results()}
    return list({signature(c): c for c in all_cases() if signature(c) not in covered}.values())


def tie_cases() -> list[Case]:
    """Return the shapes on which oneDNN's nearest gradient puts a tie on the wrong cell."""
    return [case for case in all_cases() if case.source == "tie defect"]


def transpose(taps: list[ExactTaps], diff_dst: Tensor) -> Matrix:
    """Scatter along the spatial axes: by dense matrices up to 4096 elements, sparsely beyond."""
    if max(diff_dst.shape) <= 4096 and max(tap.src for tap in taps) <= 4096:
        kept = [np.eye(size) for size in diff_dst.shape[:2]]
        return gradient([*kept, *(tap.dense() for tap in taps)], diff_dst)
    result = diff_dst.astype(np.float64)
    for axis, tap in enumerate(taps, start=2):
        result = tap.transpose_apply(result, axis)
    return result


def test_the_data_is_complete() -> None:
    assert len(library_results()) == 258
    assert len(all_cases()) == 709
    assert len(tie_cases()) == 15


@pytest.mark.parametrize("number", range(258), ids=lambda i: f"{i}-{library_results()[i][0]}")
def test_results_of_the_library_are_reproduced(number: int) -> None:
    case, diff_dst, expected = library_results()[number]
    result = case.evaluate(diff_dst.astype(DTYPES[case.dtype])).astype(np.float64)
    terms = transpose(case.taps(), np.abs(diff_dst))
    if case.dtype == "f32":
        allowed = 2.0**-21 * terms
    else:
        allowed = 2.0**-8 * terms + ulp(expected, DTYPES[case.dtype]) / 2
    assert np.all(np.abs(result - expected) <= allowed)


@pytest.mark.parametrize("case", cases_without_result(), ids=str)
def test_cases_without_a_stored_result_agree_with_exact_coordinates(case: Case) -> None:
    # Batch and channel are not resampled: a few of each show as much as 512.
    kept = tuple(min(size, 3) for size in case.dst_shape[:2])
    case = replace(case, src_shape=kept + case.src_shape[2:], dst_shape=kept + case.dst_shape[2:])
    dtype = DTYPES[case.dtype]
    diff_dst = np.random.default_rng(1).standard_normal(case.dst_shape).astype(dtype)
    result = case.evaluate(diff_dst).astype(np.float64)
    expected = transpose(case.taps(), diff_dst)

    terms = transpose(case.taps(), np.abs(diff_dst))
    reach = np.abs(diff_dst).astype(np.float64)
    for axis, tap in enumerate(case.taps(), start=2):
        reach = tap.reach(reach, axis, weight_error=case.weight_error(axis))
    allowed = (reach - terms) + 2.0**-21 * terms + ulp(expected, dtype) / 2
    assert np.all(np.abs(result - expected) <= allowed)


def test_every_case_is_accepted_with_its_own_sizes_and_scales() -> None:
    for case in all_cases():
        n, c, *x = case.src_shape
        _, _, *y = case.dst_shape
        src, dst = ((n, c, *x), (n, c, *y))
        if case.data_format == "NXC":
            src, dst = ((n, *x, c), (n, *y, c))
        plan = dialects.forward("interpolate_backward", case.operator, dst, src).plan()
        assert (plan.input_shape, plan.output_shape) == (dst, src)


@pytest.mark.parametrize("case", tie_cases(), ids=str)
def test_ties_of_nearest_go_up_where_the_library_slips(case: Case) -> None:
    # oneDNN's forward reads cell ((2 * o + 1) * src) // (2 * dst), and so does ours. Its gradient,
    # in all NXC layouts and for one channel, starts cell i at ceil(i * (dst / src) - 0.5) with the
    # quotient rounded to float32 first: some tie then falls to the cell below.
    src, dst = case.src_shape[2], case.dst_shape[2]
    diff_dst = np.broadcast_to(np.arange(1, dst + 1, dtype=np.float32), case.dst_shape)
    cell = ((2 * np.arange(dst) + 1) * src) // (2 * dst)
    expected = np.zeros(case.src_shape, np.float32)
    for o, i in enumerate(cell.tolist()):
        expected[..., i] += diff_dst[..., o]
    np.testing.assert_array_equal(case.evaluate(diff_dst), expected)

    factor = np.float32(dst) / np.float32(src)
    starts = np.ceil(np.arange(src + 1).astype(np.float32) * factor - np.float32(0.5))
    theirs = np.repeat(np.arange(src), np.diff(np.clip(starts, 0, dst).astype(np.int64)))
    assert set((cell - theirs).tolist()) == {0, 1}


def test_the_library_was_seen_to_put_a_tie_one_cell_low() -> None:
    # 28 -> 2, nearest, diff_dst [1, 2]: oneDNN 3.2 and 3.14 answer cells {7, 20} in NXC but {7, 21}
    # in NCX, where their forward reads 7 and 21.
    for data_format in ("NXC", "NCX"):
        case = Case("", "nearest", data_format, "f32", (1, 1, 28), (1, 1, 2))
        result = case.evaluate(f32([[[1, 2]]]))
        assert {int(i): float(result[0, 0, i]) for i in np.flatnonzero(result)} == {7: 1, 21: 2}
