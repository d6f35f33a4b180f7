"""Laws of every operator on tensors of every rank and type: what makes a gradient a gradient."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire_server import dialects
from gradwire_server.dialects.dialect import OperatorCall
from gradwire_server.errors import InvalidFieldError
from support.examples import examples
from support.oracles.dialect_oracles import DTYPES, lowered
from support.oracles.dialect_tables import TABLES
from support.oracles.oracles import dense_apply

CASES = st.one_of([table.cases for table in TABLES.values()])
SEEDS = st.integers(0, 2**32 - 1)
laws = examples(150)


def whole(shape, seed, dtype=np.float64):
    """Return small whole numbers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def terms_of(case, x):
    """Return what the forward's terms for x amount to, their signs left out."""
    return dense_apply({i: np.abs(each) for i, each in enumerate(case.matrices())}, np.abs(x))


@laws
@given(case=CASES, seed=SEEDS)
def test_a_gradient_is_the_adjoint_of_its_forward(case, seed):
    x, g = whole(case.source, seed), whole(case.result, seed + 1)
    difference = float(np.sum(case.forward(x) * g) - np.sum(x * case.gradient(g)))
    terms = float(np.sum(terms_of(case, x) * np.abs(g)))
    assert abs(difference) <= (0 if case.nearest else 1e-13) * terms


@laws
@given(case=CASES)
def test_inferred_sizes_are_integers_of_python(case):
    forward = case.pair.forward
    infer = dialects.DIALECTS[forward.name].output_shape
    try:
        sizes = infer(forward, case.source) if infer else None
    except InvalidFieldError:
        return  # the attributes do not determine them
    assume(sizes is not None)
    assert sizes == case.result
    assert {type(size) for size in sizes} == {int}


@laws
@given(case=CASES)
def test_a_gradient_transposes_its_forward_whose_entries_are_bounded(case):
    forward = case.pair.forward
    plan = lowered(case.pair.gradient, case.result, case.source, np.float64)
    assert (plan.input_shape, plan.output_shape, plan.fill) == (case.result, case.source, 0)
    assert [each.axis for each in plan.passes] == sorted(each.axis for each in plan.passes)
    for each in plan.passes:
        np.testing.assert_array_equal(each.map.dense(), case.matrices()[each.axis].T)
    call = OperatorCall(forward.name, case.source, case.result, gradient=False)
    axes = dialects.DIALECTS[forward.name].axes(forward, call)
    plan = lowered(forward, case.source, case.result, np.float32)
    assert plan.table_entries <= sum(axis.most_entries for axis in axes if axis is not None)


@laws
@given(case=CASES, seed=SEEDS)
def test_operators_are_linear(case, seed):
    sizes = {axis: np.abs(matrix.T) for axis, matrix in enumerate(case.matrices())}
    for apply, magnitudes, shape in (
        (case.forward, lambda x: terms_of(case, x), case.source),
        (case.gradient, lambda g: dense_apply(sizes, np.abs(g)), case.result),
    ):
        a, b = whole(shape, seed), whole(shape, seed + 1)
        together, apart = apply(3 * a - 2 * b), 3 * apply(a) - 2 * apply(b)
        terms = 3 * magnitudes(a) + 2 * magnitudes(b)
        assert np.all(np.abs(together - apart) <= (0 if case.nearest else 1e-13) * terms)


@laws
@given(case=CASES, seed=SEEDS)
def test_a_forward_keeps_constants_and_a_gradient_keeps_sums(case, seed):
    rounding = case.rounding
    assume(rounding is not None)
    assert rounding is not None
    for matrix in case.matrices():
        assert np.all(np.abs(matrix.sum(axis=1) - 1) <= rounding)
    allowed = 2 * len(case.source) * rounding
    constant = case.forward(np.full(case.source, 3.0))
    np.testing.assert_allclose(constant, 3, rtol=allowed)
    g = whole(case.result, seed)
    assert abs(case.gradient(g).sum() - g.sum()) <= allowed * np.abs(g).sum()


@laws
@given(case=CASES, seed=SEEDS, dtype=st.sampled_from(list(DTYPES.values())))
def test_what_no_output_reads_is_exactly_zero(case, seed, dtype):
    g = whole(case.result, seed, dtype)
    g[g == 0] = 1
    read = np.ones((), bool)
    for matrix in case.matrices(dtype):
        read = np.multiply.outer(read, matrix.any(axis=0))
    unread = case.gradient(g)[~read]
    assert not unread.any()
    assert not np.signbit(unread).any()


@laws
@given(
    case=CASES,
    seed=SEEDS,
    dtype=st.sampled_from(list(DTYPES.values())),
    poison=st.sampled_from([np.inf, -np.inf, np.nan]),
)
def test_inf_and_nan_reach_exactly_what_they_were_read_from(case, seed, dtype, poison):
    rng = np.random.default_rng(seed)
    element = tuple(int(rng.integers(size)) for size in case.result)
    g = whole(case.result, seed, dtype)
    g[element] = poison
    result = case.gradient(g).astype(np.float64)
    # Which elements of the source that one of the result reads, with what signs.
    touched, sign = np.ones((), bool), np.ones(())
    for band, matrix, index in zip(case.bands(dtype), case.matrices(dtype), element, strict=True):
        touched = np.multiply.outer(touched, band[index])
        sign = np.multiply.outer(sign, np.sign(matrix[index]))
    assert np.isfinite(result[~touched]).all()
    # A band may hold zeros; what they multiply is not a number.
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(result[touched], poison * sign[touched])


@laws
@given(case=CASES, seed=SEEDS, dtype=st.sampled_from([DTYPES["float16"], DTYPES["bfloat16"]]))
def test_narrow_types_are_float32_rounded_once(case, seed, dtype):
    g = np.random.default_rng(seed).standard_normal(case.result).astype(dtype)
    wide = case.gradient(g.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(case.gradient(g), wide)
