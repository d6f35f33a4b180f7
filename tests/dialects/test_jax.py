"""jax_resize and jax_resize_grad: JAX's tables to rounding, its nearest exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance import jax_image
from conformance.jax_image import table_here
from conformance.rows import Tally
from gradwire import ops
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix, evaluate

STORED = list(axis_tables.load(jax_image.STORED))


def check(case: AxisCase, table: Matrix) -> None:
    allowed = 0 if case.attributes["method"] == "nearest" else jax_image.ROUNDING[np.float32]
    np.testing.assert_allclose(table, table_here(case), rtol=0, atol=allowed, err_msg=str(case))


@pytest.fixture(scope="module")
def jax() -> Any:
    return pytest.importorskip("jax", reason="compares with JAX where it is there")


@pytest.mark.parametrize(("case", "table"), STORED, ids=[str(case) for case, _ in STORED])
def test_stored_tables_of_jax_hold(case: AxisCase, table: Matrix) -> None:
    check(case, table)


# XLA takes a tenth of a second for the program of each case: of each set of attributes some are
# left to `make full`.
@pytest.mark.parametrize(
    ("dtype", "first", "last"),
    [
        (np.float32, 0, 54),
        (np.float64, 0, 18),
        pytest.param(np.float32, 54, 1008, marks=pytest.mark.heavy),
        pytest.param(np.float64, 18, 63, marks=pytest.mark.heavy),
    ],
)
def test_jax_and_its_transposes_have_these_tables(
    jax: Any, dtype: Any, first: int, last: int
) -> None:
    tally = Tally()
    with jax.enable_x64(dtype is np.float64):
        jax_image.add_weights(tally, jax, jax_image.cases(last)[first:], dtype)
    tally.check()


@pytest.mark.parametrize(("first", "last"), [(0, 3), pytest.param(3, 18, marks=pytest.mark.heavy)])
def test_calls_by_themselves_have_the_tables_of_a_larger_program(
    jax: Any, first: int, last: int
) -> None:
    cases = jax_image.cases(last)[first:]
    for case, (forward, gradient) in zip(cases, jax_image.tables(jax, cases), strict=True):
        np.testing.assert_array_equal(jax_image.forward_table(jax, case), forward)
        np.testing.assert_array_equal(jax_image.gradient_table(jax, case), gradient)


@pytest.mark.parametrize("method", jax_image.METHODS)
def test_a_gradient_of_several_axes_is_jax_s(jax: Any, method: Any) -> None:
    def resized(x: Any) -> Any:
        return jax.image.resize(x, (3, 9, 4), method)

    cotangent = np.random.default_rng(3).standard_normal((3, 9, 4), np.float32)
    _, transpose = jax.vjp(resized, jax.numpy.zeros((3, 5, 13)))
    (expected,) = transpose(cotangent)
    result = evaluate(ops.JaxResizeGrad(method=method), cotangent, (3, 5, 13))
    np.testing.assert_allclose(result, np.asarray(expected), rtol=0, atol=2.0**-16)


# Some lengths for which the formula, as it is written, reads another element.
FOLDED = [(2, 41), (4, 41), (10, 25), (20, 25), (34, 31), (30, 29), (64, 61)]


def test_nearest_takes_the_ratio_first_as_xla_does(jax: Any) -> None:
    for inputs, outputs in FOLDED:
        case = AxisCase({"method": "nearest"}, inputs, outputs)
        check(case, jax_image.forward_table(jax, case))


@pytest.mark.parametrize(("inputs", "outputs"), FOLDED)
def test_nearest_is_not_the_formula_from_left_to_right(inputs: int, outputs: int) -> None:
    x = np.arange(outputs).astype(np.float32) + np.float32(0.5)
    written = np.floor(x * np.float32(inputs) / np.float32(outputs)).astype(int)
    read = table_here(AxisCase({"method": "nearest"}, inputs, outputs)).argmax(axis=1)
    assert set(np.abs(read - written).tolist()) == {0, 1}
