"""Operators of PyTorch, TensorFlow, JAX and OpenVINO: their stored tables, and rules."""

import json
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from conformance import pytorch
from conformance.one_axis import TABLES, jax_allowed, jax_table, tf_table
from gradwire import ops
from gradwire.errors import InvalidRequestError
from gradwire_server import dialects
from support.oracles import dialect_oracles as oracles
from support.oracles.dialect_oracles import DATA, AxisCase, evaluate, lowered, normal


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


counts = Counter(title for title, *_ in STORED.values())
assert counts == {"TensorFlow": 72, "JAX": 63, "OpenVINO": 90}


@pytest.mark.parametrize(("title", "case", "table"), STORED.values(), ids=list(STORED))
def test_stored_tables_hold(title, case, table):
    allowed = jax_allowed(case) if title == "JAX" else 0
    np.testing.assert_allclose(table, TABLES[title](case), rtol=0, atol=allowed)


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
    wide = oracles.axis_matrix(operator, case, rank=4, axis=2, dtype=np.float64)
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


SIZES = [
    ({"size": 5}, (2, 3, 4, 7, 1), (2, 3, 5, 5, 5)),
    ({"size": (5, 6)}, (2, 3, 4, 7), (2, 3, 5, 6)),
    ({"scale_factor": 1.7}, (2, 3, 4, 7), (2, 3, 6, 11)),
    # float64, truncated: 0.29 * 100 is 28.999999999999996.
    ({"scale_factor": 0.29}, (1, 1, 100), (1, 1, 28)),
    ({"scale_factor": 0.29, "recompute_scale_factor": True}, (1, 1, 100), (1, 1, 28)),
    ({"scale_factor": 0.7, "mode": "area"}, (1, 1, 10), (1, 1, 7)),
]


@pytest.mark.parametrize(("given", "source", "result"), SIZES, ids=str)
def test_the_output_has_the_size_that_pytorch_gives_it(given, source, result):
    operator = ops.TorchInterpolate(**given)
    assert dialects.output_shape(operator.name, operator, source) == result
    assert lowered(operator, source, result).output_shape == result


def test_a_table_of_many_blocks_is_the_table_of_one():
    operator = ops.TorchInterpolate(mode="bicubic", antialias=True, size=(90_000, 3))
    bands = lowered(operator, (1, 1, 300_000, 3), (1, 1, 90_000, 3)).passes[0].map
    # The scale is 10 / 3 exactly: every third output reads alike, ten inputs on.
    inside = slice(300, 89_700)
    np.testing.assert_array_equal(bands.start[inside][3:], bands.start[inside][:-3] + 10)
    sums = np.add.reduceat(bands.weight, bands.offset[:-1])
    assert np.abs(sums - 1).max() < 2.0**-20


def test_the_gradient_of_area_is_added_in_float32_whatever_the_type():
    ones = np.ones((1, 1, 96, 96), ml_dtypes.bfloat16)
    result = evaluate(ops.TorchUpsampleBackward(mode="area"), ones, (1, 1, 2, 2))
    assert float(result.astype(np.float64).sum()) == 96 * 96


def stored(name, *arrays):
    """Yield what is told of each case, and its two arrays."""
    with np.load(DATA / name) as file:
        for i, about in enumerate(json.loads(str(file["about"]))["cases"]):
            yield about, *(file[f"{each}_{i}"] for each in arrays)


TORCH_TABLES = [
    (pytorch.AxisCase(**about), *tables)
    for about, *tables in stored("torch_axes.npz", "forward", "backward")
]
TORCH_NAMES = [str(case) for case, *_ in TORCH_TABLES]
# Mode, type, and two gradients of calls with align_corners, in the type's values.
CORNERS = [
    (about["mode"], about["dtype"], *gradients)
    for about, *gradients in stored("torch_align_corners.npz", "output_gradient", "input_gradient")
]


@pytest.mark.parametrize(("case", "forward", "backward"), TORCH_TABLES, ids=TORCH_NAMES)
def test_stored_weights_are_reproduced(case, forward, backward):
    for ours, theirs in zip(case.ours(), (forward, backward), strict=True):
        assert np.all(np.abs(ours - theirs) <= case.allowed())


def test_the_stored_cases_are_all_tested():
    assert (len(TORCH_TABLES), len(CORNERS)) == (284, 60)


# The first nine of the stored cases; see docs/dialects/torch.md.
@pytest.mark.parametrize(("case", "theirs", "backward"), TORCH_TABLES[:9], ids=TORCH_NAMES[:9])
def test_where_pytorch_has_two_tables_there_are_two(case, theirs, backward):
    assert not np.array_equal(theirs, backward)
    assert not np.array_equal(*case.ours())


def test_width_1_antialiased_is_computed_as_any_other():
    # torch 2.13 gives every row the first row's mean; see deviations.toml.
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    narrow, wide = (
        evaluate(
            ops.TorchInterpolate(mode="bilinear", antialias=True, size=(2, width)),
            x.repeat(width, axis=3),
            (1, 1, 2, width),
        )
        for width in (1, 2)
    )
    np.testing.assert_array_equal(narrow, wide[..., :1])


def check_corners(mode, dtype, output_gradient, expected):
    """Compare our gradient with torch's.

    torch rounds (src - 1) / (dst - 1) first, which moves a weight by up to 4 * 2**-24 * src, and
    both sides round to the storage type.
    """
    kind = oracles.DTYPES[dtype]
    operator = ops.InterpolateBackward(
        mode=mode, coordinate_transformation_mode="align_corners", data_format="NCX"
    )
    given = output_gradient.astype(kind)
    result = evaluate(operator, given, expected.shape).astype(np.float64)
    terms = reach = np.abs(output_gradient)
    for axis in range(2, terms.ndim):
        src, dst = expected.shape[axis], given.shape[axis]
        taps = oracles.ExactTaps.of(src, dst, align_corners=True, nearest=False)
        reach, terms = taps.scatter(reach, axis, 4 * 2.0**-24 * src), taps.scatter(terms, axis)
    allowed = (reach - terms) + 2.0**-21 * terms + oracles.ulp(expected, kind)
    assert np.all(np.abs(result - expected) <= allowed)


@pytest.mark.parametrize("number", range(60))
def test_stored_gradients_of_torch_are_reproduced(number):
    check_corners(*CORNERS[number])
