"""Laws of every operator on tensors of every rank and type: what makes a gradient a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dialect_oracles import DML_RULES, Matrix, Pair, Tensor, dml_operators, evaluate
from gradwire import ops
from gradwire_server import dialects

Shape = tuple[int, ...]

DTYPES = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
MOST_ELEMENTS = 600

SCALES = st.floats(2**-6, 64, width=32) | st.floats(
    min_value=0, exclude_min=True, allow_infinity=False, width=32
)
OFFSETS = st.sampled_from([0.0, 0.5, -0.5, 1.0]) | st.floats(-9, 9, width=32)


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its gradient, and the two shapes they run between."""

    pair: Pair
    source: Shape
    result: Shape
    nearest: bool

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate the operator."""
        return evaluate(self.pair.forward, x, self.result)

    def gradient(self, g: Tensor) -> Tensor:
        """Evaluate its gradient."""
        return evaluate(self.pair.gradient, g, self.source)

    def matrices(self) -> list[Matrix]:
        """Return the forward's dense matrix along each axis."""
        plan = dialects.lower(self.pair.forward.name, self.pair.forward, self.source, self.result)
        matrices = [np.eye(size) for size in self.source]
        for each in plan.passes:
            matrices[each.axis] = each.map.dense()
        return matrices


def shapes(rank: int) -> st.SearchStrategy[Shape]:
    """Short axes, fewer elements the more of them there are."""
    longest = max(2, int(MOST_ELEMENTS ** (1 / rank)))
    return st.lists(st.integers(1, longest), min_size=rank, max_size=rank).map(tuple)


@st.composite
def dml_cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 8))
    rule = draw(st.sampled_from(sorted(DML_RULES)))
    arrays: dict[str, Any] = {}
    for name, values in (
        ("scales", SCALES),
        ("input_pixel_offsets", OFFSETS),
        ("output_pixel_offsets", OFFSETS),
    ):
        if draw(st.booleans()):
            arrays[name] = draw(st.lists(values, min_size=rank, max_size=rank))
    pair = draw(st.sampled_from(dml_operators(rule, **arrays)))
    return Case(pair, draw(shapes(rank)), draw(shapes(rank)), rule != "linear")


@st.composite
def onednn_cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(3, 5))
    mode = draw(st.sampled_from(["nearest", "linear"]))
    attributes: Any = {
        "mode": mode,
        "coordinate_transformation_mode": draw(st.sampled_from(["half_pixel", "align_corners"])),
        "data_format": draw(st.sampled_from(["NCX", "NXC"])),
    }
    source, result = draw(shapes(rank)), draw(shapes(rank))
    channel = 1 if attributes["data_format"] == "NCX" else rank - 1
    spatial = [axis for axis in range(1, rank) if axis != channel]
    result = tuple(result[a] if a in spatial else source[a] for a in range(rank))
    sizes = tuple(result[axis] for axis in spatial)
    pair = Pair(ops.Interpolate(sizes=sizes, **attributes), ops.InterpolateBackward(**attributes))
    return Case(pair, source, result, mode == "nearest")


CASES = dml_cases() | onednn_cases()
SEEDS = st.integers(0, 2**32 - 1)
laws = settings(deadline=None, max_examples=150)


def whole(shape: Shape, seed: int, dtype: Any = np.float64) -> Tensor:
    """Return small whole numbers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def reached(case: Case, element: Shape) -> Tensor:
    """Tell which elements of the source the one element of the result reads."""
    mask = np.ones((), bool)
    for matrix, index in zip(case.matrices(), element, strict=True):
        mask = np.multiply.outer(mask, matrix[index] != 0)
    return mask


@laws
@given(case=CASES, seed=SEEDS)
def test_a_gradient_is_the_adjoint_of_its_forward(case: Case, seed: int) -> None:
    x, g = whole(case.source, seed), whole(case.result, seed + 1)
    difference = float(np.sum(case.forward(x) * g) - np.sum(x * case.gradient(g)))
    terms = float(np.sum(case.forward(np.abs(x)) * np.abs(g)))
    assert abs(difference) <= (0 if case.nearest else 1e-13) * terms


@laws
@given(case=CASES)
def test_the_plan_of_a_gradient_transposes_the_plan_of_its_forward(case: Case) -> None:
    gradient = case.pair.gradient
    plan = dialects.lower(gradient.name, gradient, case.result, case.source)
    assert (plan.input_shape, plan.output_shape, plan.fill) == (case.result, case.source, 0)
    assert [each.axis for each in plan.passes] == sorted(each.axis for each in plan.passes)
    for each in plan.passes:
        np.testing.assert_array_equal(each.map.dense(), case.matrices()[each.axis].T)


@laws
@given(case=CASES, seed=SEEDS)
def test_operators_are_linear(case: Case, seed: int) -> None:
    for apply, shape in ((case.forward, case.source), (case.gradient, case.result)):
        a, b = whole(shape, seed), whole(shape, seed + 1)
        together, apart = apply(3 * a - 2 * b), 3 * apply(a) - 2 * apply(b)
        terms = 3 * apply(np.abs(a)) + 2 * apply(np.abs(b))
        assert np.all(np.abs(together - apart) <= (0 if case.nearest else 1e-13) * terms)


@laws
@given(case=CASES, seed=SEEDS)
def test_a_forward_keeps_constants_and_a_gradient_keeps_sums(case: Case, seed: int) -> None:
    # One tap weighs 1; of two, 1 - w is rounded to float32, by half its spacing below 1 at most.
    rounding = 0 if case.nearest else 2.0**-25
    for matrix in case.matrices():
        assert np.all(np.abs(matrix.sum(axis=1) - 1) <= rounding)
    allowed = 2 * len(case.source) * rounding
    constant = case.forward(np.full(case.source, 3.0))
    np.testing.assert_allclose(constant, 3, rtol=allowed)
    g = whole(case.result, seed)
    assert abs(case.gradient(g).sum() - g.sum()) <= allowed * np.abs(g).sum()


@laws
@given(case=CASES, seed=SEEDS, dtype=st.sampled_from(DTYPES))
def test_what_no_output_reads_is_exactly_zero(case: Case, seed: int, dtype: Any) -> None:
    g = whole(case.result, seed, dtype)
    g[g == 0] = 1
    read = np.ones((), bool)
    for matrix in case.matrices():
        read = np.multiply.outer(read, matrix.any(axis=0))
    unread = case.gradient(g)[~read]
    assert not unread.any()
    assert not np.signbit(unread).any()


@laws
@given(
    case=CASES,
    seed=SEEDS,
    dtype=st.sampled_from(DTYPES),
    poison=st.sampled_from([np.inf, -np.inf, np.nan]),
)
def test_inf_and_nan_reach_exactly_what_they_were_read_from(
    case: Case, seed: int, dtype: Any, poison: float
) -> None:
    rng = np.random.default_rng(seed)
    element = tuple(int(rng.integers(size)) for size in case.result)
    g = whole(case.result, seed, dtype)
    g[element] = poison
    result = case.gradient(g).astype(np.float64)
    touched = reached(case, element)
    assert np.isfinite(result[~touched]).all()
    expected = np.full(np.count_nonzero(touched), poison)
    np.testing.assert_array_equal(result[touched], expected)


@laws
@given(case=CASES, seed=SEEDS, dtype=st.sampled_from(DTYPES[:2]))
def test_narrow_types_are_float32_rounded_once(case: Case, seed: int, dtype: Any) -> None:
    g = np.random.default_rng(seed).standard_normal(case.result).astype(dtype)
    wide = case.gradient(g.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(case.gradient(g), wide)
