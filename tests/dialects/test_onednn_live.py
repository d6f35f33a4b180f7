"""interpolate and interpolate_backward against the installed oneDNN, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from conformance import installed
from gradwire import ops
from support.oracles import axis_tables, live_onednn
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix, evaluate

if installed.version("onednn") is None:
    pytest.skip("compares with oneDNN where it is installed", allow_module_level=True)


def matrix(case: AxisCase) -> Matrix:
    operator = ops.Interpolate(
        mode=case.attributes["mode"], data_format="NCX", sizes=(case.outputs,)
    )
    return axis_tables.axis_matrix(operator, case, rank=3, axis=2, dtype=np.float32)


@pytest.mark.parametrize("dtype", live_onednn.DTYPES)
@pytest.mark.parametrize("operator", live_onednn.TABLES)
def test_weights_have_the_library_s_bits(operator: str, dtype: str) -> None:
    if dtype == "bfloat16" and not live_onednn.has_avx512():
        pytest.skip("oneDNN has no bfloat16 without AVX-512")
    for case in live_onednn.cases(1000):
        attributes = case.attributes
        if operator == "interpolate_backward" and attributes["mode"] == "nearest":
            attributes = {**attributes, "data_format": "NCX"}  # its other one moves ties
        table = live_onednn.TABLES[operator](AxisCase(attributes, case.inputs, case.outputs), dtype)
        ours = matrix(case).astype(live_onednn.DTYPES[dtype]).astype(np.float64)
        np.testing.assert_array_equal(table, ours, str(case))


def test_ties_of_the_gradient_are_one_element_low_in_nxc_with_avx512_alone() -> None:
    low = [7, 20] if live_onednn.has_avx512() else [7, 21]
    for data_format, reached in (("NCX", [7, 21]), ("NXC", low)):
        case = AxisCase({"mode": "nearest", "data_format": data_format}, 28, 2)
        assert live_onednn.forward_table(case).argmax(axis=1).tolist() == [7, 21]
        assert live_onednn.gradient_table(case).argmax(axis=1).tolist() == reached
        assert matrix(case).argmax(axis=1).tolist() == [7, 21]


def test_an_infinity_at_a_whole_coordinate_is_nan_in_the_library_alone() -> None:
    diff_src, diff_dst = np.zeros((1, 1, 1), np.float32), np.full((1, 1, 1), np.inf, np.float32)
    live_onednn.resample("linear", diff_src, diff_dst, backward=True)
    assert np.isnan(diff_src).all()
    operator = ops.InterpolateBackward(mode="linear", data_format="NCX")
    np.testing.assert_array_equal(evaluate(operator, diff_dst, (1, 1, 1)), diff_dst)
