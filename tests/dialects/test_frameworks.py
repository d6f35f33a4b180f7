"""TensorFlow's, JAX's and OpenVINO's operators: stored tables, rules, and calls of several axes."""

import json

import numpy as np
import pytest

from conformance.one_axis import TABLES, jax_allowed, jax_table, tf_table
from gradwire import ops
from gradwire.errors import InvalidRequestError
from gradwire_server import dialects
from support.oracles.dialect_oracles import DATA, AxisCase, axis_matrix, evaluate, lowered


def load(title):
    """Yield the cases of a framework, and their matrices."""
    with np.load(DATA / f"{title.lower()}_tables.npz") as stored:
        flat, cases = stored["flat"].astype(np.float64), json.loads(str(stored["about"]))["cases"]
    for attributes, inputs, outputs in cases:
        table, flat = np.split(flat, [inputs * outputs])
        yield AxisCase(attributes, inputs, outputs), table.reshape(outputs, inputs)
    assert not len(flat)


STORED = {
    f"{title}-{number}-{case.attributes.get('mode', case)}": (title, case, table)
    for title in TABLES
    for number, (case, table) in enumerate(load(title))
}


@pytest.mark.parametrize(("title", "case", "table"), STORED.values(), ids=list(STORED))
def test_stored_tables_hold(title, case, table):
    allowed = jax_allowed(case) if title == "JAX" else 0
    np.testing.assert_allclose(table, TABLES[title](case), rtol=0, atol=allowed)


def normal(*shape):
    return np.random.default_rng(4).standard_normal(shape, np.float32)


def test_bicubic_tells_1024_positions_apart():
    # 1/3 is taken for 341/1024: Keys' kernel with -0.75 there, rounded to float32.
    table = tf_table(AxisCase({"kind": "bicubic"}, 4, 12))
    t = 341 / 1024
    exact = [
        ((-0.75 * (1 + t) + 3.75) * (1 + t) - 6) * (1 + t) + 3,
        (1.25 * t - 2.25) * t * t + 1,
        (1.25 * (1 - t) - 2.25) * (1 - t) * (1 - t) + 1,
        ((-0.75 * (2 - t) + 3.75) * (2 - t) - 6) * (2 - t) + 3,
    ]
    np.testing.assert_array_equal(table[4], np.array(exact, np.float32))


def test_weights_of_tensorflow_are_float32_for_float64_tensors_too():
    case = AxisCase({"kind": "bilinear", "half_pixel_centers": True}, 5, 7)
    operator = ops.TfResize(**case.attributes)
    wide = axis_matrix(operator, case, rank=4, axis=2, dtype=np.float64)
    np.testing.assert_array_equal(wide, tf_table(case))


@pytest.mark.parametrize(
    "attributes", [{"size": (3,)}, {"align_corners": True, "half_pixel_centers": True}]
)
def test_what_the_ops_of_tensorflow_refuse_is_refused(attributes):
    with pytest.raises(InvalidRequestError):
        ops.TfResizeGrad(kind="bilinear", **attributes)


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(2, 41), (4, 41), (10, 25), (20, 25), (34, 31), (30, 29), (64, 61)]
)
def test_nearest_of_jax_is_not_the_formula_from_left_to_right(inputs, outputs):
    x = np.arange(outputs).astype(np.float32) + np.float32(0.5)
    written = np.floor(x * np.float32(inputs) / np.float32(outputs)).astype(int)
    read = jax_table(AxisCase({"method": "nearest"}, inputs, outputs)).argmax(axis=1)
    assert set(np.abs(read - written).tolist()) == {0, 1}


@pytest.mark.parametrize("mode", ["bilinear_pillow", "bicubic_pillow"])
def test_the_order_of_the_axes_of_pillow_tells_whose_size_is_whose(mode):
    image, shape = normal(2, 3, 8, 5), (2, 3, 4, 9)
    descending, ascending = (
        evaluate(ops.OpenvinoInterpolate(mode=mode, axes=axes, sizes=sizes), image, shape)
        for axes, sizes in (((3, 2), (9, 4)), ((2, 3), (4, 9)))
    )
    np.testing.assert_array_equal(descending, ascending)


def test_antialias_stretches_every_axis_by_its_scale_where_one_shrinks():
    # Scale 4 makes the triangle a quarter as wide: outputs far from any element read nothing.
    operator = ops.OpenvinoInterpolate(mode="linear", antialias=True, sizes=(8, 3))
    result = evaluate(operator, np.ones((2, 6), np.float32), (8, 3))
    np.testing.assert_array_equal(result[:, 1], [0, 1, 1, 0, 0, 1, 1, 0])


def test_lengths_of_openvino_are_sizes_or_scaled_padded_lengths():
    scales = {"shape_calculation_mode": "scales"}
    rows = [
        ((2, 3), {"sizes": (5, 4)}, (5, 4)),
        ((2, 3), {"sizes": (5, 4), "axes": (1, 0)}, (4, 5)),
        ((2, 3), {"scales": (2.5,), "axes": (1,), "pads_begin": (1,), **scales}, (3, 7)),
        # 0.1 in float32 is above 0.1; 1 / 3 is below, which the 1e-6 makes up for.
        ((10, 3), {"scales": (0.1, 1 / 3), **scales}, (1, 1)),
    ]
    for source, attributes, result in rows:
        operator = ops.OpenvinoInterpolate(mode="linear", **attributes)
        assert dialects.output_shape(operator.name, operator, source) == result


def test_a_tiny_scale_reads_the_last_element():
    # X / scale is beyond float32 for all but the first output.
    operator = ops.OpenvinoInterpolate(
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        shape_calculation_mode="scales",
        scales=(float(np.float32(1e-40)),),
    )
    (only,) = lowered(operator, (2_000_000,), (2,)).passes
    assert only.map.start.tolist() == [0, 1_999_999]
