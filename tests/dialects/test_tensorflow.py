"""tf_resize and tf_resize_grad: TensorFlow's bits, and what it refuses or lacks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from conformance import tensorflow_ops
from conformance.tensorflow_ops import table_here
from gradwire import ops
from gradwire.errors import InvalidRequestError
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix, evaluate

STORED = list(axis_tables.load(tensorflow_ops.STORED))


@pytest.fixture(scope="module")
def tf() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow", reason="compares with TensorFlow where it is there")


@pytest.mark.parametrize(("case", "table"), STORED, ids=[str(case) for case, _ in STORED])
def test_stored_tables_of_tensorflow_hold_bit_by_bit(case: AxisCase, table: Matrix) -> None:
    np.testing.assert_array_equal(table_here(case), table)


def test_the_ops_and_their_gradients_have_these_tables_bit_by_bit(tf: Any) -> None:
    tensorflow_ops.compared(tf).check()


@pytest.mark.parametrize("kind", tensorflow_ops.KINDS)
def test_a_gradient_of_height_and_width_is_the_op_s(tf: Any, kind: Any) -> None:
    grads = np.random.default_rng(3).standard_normal((2, 7, 9, 3), np.float32)
    op = getattr(tf.raw_ops, f"{tensorflow_ops.KINDS[kind]}Grad")
    image = {"original_image": np.zeros((2, 4, 13, 3), np.float32)}
    shape = {"size": [4, 13]} if kind == "nearest_neighbor" else image
    expected = op(grads=grads, half_pixel_centers=True, **shape).numpy()
    operator = ops.TfResizeGrad(kind=kind, half_pixel_centers=True)
    result = evaluate(operator, grads, (2, 4, 13, 3))
    np.testing.assert_allclose(result, expected, atol=2.0**-20)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic", "nearest_neighbor"])
def test_align_corners_has_no_part_where_a_length_is_1(kind: Any) -> None:
    # Of one element ResizeBicubic weighs four copies: in float32 they do not always add up to 1.
    for inputs, outputs in ((1, 7), (7, 1)):
        corners, plain = (
            table_here(AxisCase({"kind": kind, "align_corners": flag}, inputs, outputs))
            for flag in (True, False)
        )
        np.testing.assert_array_equal(corners, plain)


def test_bicubic_tells_1024_positions_apart() -> None:
    # 1/3 is taken for 341/1024: Keys' kernel with -0.75 there, rounded to float32.
    table = table_here(AxisCase({"kind": "bicubic"}, 4, 12))
    t = 341 / 1024
    exact = [
        ((-0.75 * (1 + t) + 3.75) * (1 + t) - 6) * (1 + t) + 3,
        (1.25 * t - 2.25) * t * t + 1,
        (1.25 * (1 - t) - 2.25) * (1 - t) * (1 - t) + 1,
        ((-0.75 * (2 - t) + 3.75) * (2 - t) - 6) * (2 - t) + 3,
    ]
    np.testing.assert_array_equal(table[4], np.array(exact, np.float32))


def test_the_weights_are_float32_for_float64_tensors_too() -> None:
    case = AxisCase({"kind": "bilinear", "half_pixel_centers": True}, 5, 7)
    operator = ops.TfResize(**case.attributes)
    wide = axis_tables.axis_matrix(operator, case, rank=4, axis=2, dtype=np.float64)
    np.testing.assert_array_equal(wide, table_here(case))


@pytest.mark.parametrize(
    "attributes", [{"size": (3,)}, {"align_corners": True, "half_pixel_centers": True}]
)
def test_what_the_ops_refuse_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        ops.TfResizeGrad(kind="bilinear", **attributes)
