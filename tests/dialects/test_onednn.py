"""oneDNN's operators: arithmetic and sizes, results of the library, and the cases of its tests."""

import json
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import (
    DATA,
    ExactTaps,
    axis_table,
    evaluate,
    f32,
    onednn_axis,
    ulp,
)


def backward(mode, **attributes):
    return ops.InterpolateBackward(mode=mode, data_format="NCX", **attributes)


def interpolate(**attributes):
    return ops.Interpolate(mode="linear", data_format="NCX", **attributes)


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@given(src=st.integers(1, 200), dst=st.integers(1, 200))
@example(src=28, dst=2)
@example(src=1, dst=1)
# Dividing before the product of half_pixel reads another element for one output.
@example(src=22, dst=11)
# Equal sizes are no identity: this product rounds.
@example(src=2897, dst=2897)
def test_onednn_tables_follow_the_formula(transformation, mode, src, dst):
    corners, nearest = transformation == "align_corners", mode == "nearest"
    expected = onednn_axis(src, dst, align_corners=corners, nearest=nearest)
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}
    forward = ops.Interpolate(sizes=(dst,), data_format="NCX", **attributes)
    there, back = (1, 1, src), (1, 1, dst)
    np.testing.assert_array_equal(axis_table(forward, there, back, 2), expected)
    np.testing.assert_array_equal(axis_table(backward(**attributes), back, there, 2), expected.T)


SIZES = [
    # The product is float32's: in float64 10 * 0.7f would be 6.99..., and 100 * 0.29f 28.99....
    (interpolate(scales=(0.7,)), (2, 3, 10), (2, 3, 7)),
    (interpolate(scales=(0.29,)), (2, 3, 100), (2, 3, 29)),
    (interpolate(scales=(1.6666666,)), (2, 3, 3), (2, 3, 5)),
    (interpolate(scales=(2,)), (2, 3, 5), (2, 3, 10)),
    (interpolate(scales=(0.583333,)), (2, 3, 12), (2, 3, 6)),
    (interpolate(scales=(0.1,)), (2, 3, 10), (2, 3, 1)),
    (interpolate(scales=(0.583333,), sizes=(7,)), (2, 3, 12), (2, 3, 7)),
    (interpolate(sizes_tensor=(7,)), (2, 3, 12), (2, 3, 7)),
    (ops.Interpolate(mode="linear", sizes=(5, 6)), (2, 3, 4, 7), (2, 5, 6, 7)),
    (interpolate(sizes=(5, 6)), (2, 7, 3, 4), (2, 7, 5, 6)),
    (backward("linear", sizes=(8,)), (1, 1, 8), None),
]


@pytest.mark.parametrize(("operator", "source", "result"), SIZES, ids=str)
def test_sizes_are_those_given_or_scaled(operator, source, result):
    assert dialects.output_shape(operator.name, operator, source) == result


DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


class Case(SimpleNamespace):
    """One call of InterpolateBackward; shapes are batch, channel, spatial in any format."""

    sizes = scales = ()

    def __str__(self):
        src, dst = ("x".join(map(str, shape)) for shape in (self.src_shape, self.dst_shape))
        return f"{self.mode}-{self.data_format}-{self.dtype}-{src}-to-{dst}"

    @property
    def operator(self):
        attributes = {name: getattr(self, name) for name in ("mode", "data_format", "scales")}
        return ops.InterpolateBackward(sizes=self.sizes, **attributes)

    def evaluate(self, diff_dst):
        if self.data_format == "NCX":
            return evaluate(self.operator, diff_dst, tuple(self.src_shape))
        n, c, *x = self.src_shape
        result = evaluate(self.operator, np.moveaxis(diff_dst, 1, -1), (n, *x, c))
        return np.moveaxis(result, -1, 1)

    def exact(self, diff_dst, coordinate_error=0):
        """Scatter along the spatial axes, weights too large by the error of coordinates up to 1."""
        nearest = self.mode == "nearest"
        for axis in range(2, diff_dst.ndim):
            src, dst = self.src_shape[axis], self.dst_shape[axis]
            taps = ExactTaps.of(src, dst, align_corners=False, nearest=nearest)
            error = 0 if nearest else coordinate_error * src
            diff_dst = taps.scatter(diff_dst, axis, error)
        return diff_dst


# 258 results of oneDNN 3.2 on a CPU: case, diff_dst, diff_src, bfloat16 widened.
with np.load(DATA / "onednn_backward.npz") as _stored:
    RESULTS = [
        (Case(**case), _stored[f"diff_dst_{i}"], _stored[f"diff_src_{i}"])
        for i, case in enumerate(json.loads(str(_stored["cases"])))
    ]
# The 709 cases of oneDNN's own tests, and one of each signature that RESULTS do not cover.
_rows = json.loads((DATA / "onednn_cases.json").read_text())
CASES = [Case(**dict(zip(_rows["fields"], row, strict=True))) for row in _rows["cases"]]
_covered = {str(case) for case, _, _ in RESULTS}
WITHOUT_RESULT = {str(case): case for case in CASES if str(case) not in _covered}
# The shapes on which oneDNN's nearest gradient puts a tie on the wrong cell.
TIES = [case for case in CASES if case.source == "tie defect"]


def allowed(case, diff_dst, expected):
    """Return the roundings of both sides."""
    terms = case.exact(np.abs(diff_dst))
    if case.dtype == "f32":
        return 2.0**-21 * terms
    return 2.0**-8 * terms + ulp(expected, DTYPES[case.dtype]) / 2


def test_the_data_is_complete():
    assert (len(RESULTS), len(CASES), len(TIES)) == (258, 709, 15)


@pytest.mark.parametrize("number", range(258), ids=lambda i: f"{i}-{RESULTS[i][0]}")
def test_results_of_the_library_are_reproduced(number):
    case, diff_dst, expected = RESULTS[number]
    result = case.evaluate(diff_dst.astype(DTYPES[case.dtype])).astype(np.float64)
    assert np.all(np.abs(result - expected) <= allowed(case, diff_dst, expected))


@pytest.mark.parametrize("case", WITHOUT_RESULT.values(), ids=str)
def test_cases_without_a_stored_result_agree_with_exact_coordinates(case):
    # Batch and channel are not resampled: a few of each show as much as 512.
    kept = [min(size, 3) for size in case.dst_shape[:2]]
    shapes = {name: [*kept, *getattr(case, name)[2:]] for name in ("src_shape", "dst_shape")}
    case = Case(**vars(case) | shapes)
    dtype = DTYPES[case.dtype]
    diff_dst = np.random.default_rng(1).standard_normal(case.dst_shape).astype(dtype)
    result, expected = case.evaluate(diff_dst).astype(np.float64), case.exact(diff_dst)

    terms = case.exact(np.abs(diff_dst))
    # How far float32 coordinates may be off: three roundings of numbers up to src.
    reach = case.exact(np.abs(diff_dst), 3 * 2.0**-24)
    rounding = (reach - terms) + 2.0**-21 * terms + ulp(expected, dtype) / 2
    assert np.all(np.abs(result - expected) <= rounding)


def test_every_case_is_accepted_with_its_own_sizes_and_scales():
    for case in CASES:
        src, dst = map(tuple, (case.src_shape, case.dst_shape))
        if case.data_format == "NXC":
            src, dst = ((n, *x, c) for n, c, *x in (src, dst))
        plan = dialects.forward("interpolate_backward", case.operator, dst, src).plan()
        assert (plan.input_shape, plan.output_shape) == (dst, src)


def test_the_library_was_seen_to_put_a_tie_one_cell_low():
    # 28 -> 2, nearest, diff_dst [1, 2]: oneDNN 3.2 and 3.14 answer cells {7, 20} in NXC but {7, 21}
    # in NCX, where their forward reads 7 and 21.
    for data_format in ("NXC", "NCX"):
        case = Case(
            mode="nearest", data_format=data_format, src_shape=(1, 1, 28), dst_shape=(1, 1, 2)
        )
        result = case.evaluate(f32([[[1, 2]]]))
        assert {int(i): float(result[0, 0, i]) for i in np.flatnonzero(result)} == {7: 1, 21: 2}
