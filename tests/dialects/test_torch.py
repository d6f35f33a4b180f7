"""PyTorch's operators: sizes, and weights that are stored, of the installed one, bit for bit."""

import json

import ml_dtypes
import numpy as np
import pytest

from conformance.pytorch import AxisCase
from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import DATA, DTYPES, ExactTaps, evaluate, lowered, ulp

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


STORED = [
    (AxisCase(**about), *tables)
    for about, *tables in stored("torch_axes.npz", "forward", "backward")
]
CASES = [str(case) for case, *_ in STORED]
# Mode, type, and two gradients of calls with align_corners, in the type's values.
CORNERS = [
    (about["mode"], about["dtype"], *gradients)
    for about, *gradients in stored("torch_align_corners.npz", "output_gradient", "input_gradient")
]


@pytest.mark.parametrize(("case", "forward", "backward"), STORED, ids=CASES)
def test_stored_weights_are_reproduced(case, forward, backward):
    for ours, theirs in zip(case.ours(), (forward, backward), strict=True):
        assert np.all(np.abs(ours - theirs) <= case.allowed())


def test_the_stored_cases_are_all_tested():
    assert (len(STORED), len(CORNERS)) == (284, 60)


# The first nine of the stored cases; see docs/dialects/torch.md.
@pytest.mark.parametrize(("case", "theirs", "backward"), STORED[:9], ids=CASES[:9])
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
    kind = DTYPES[dtype]
    operator = ops.InterpolateBackward(
        mode=mode, coordinate_transformation_mode="align_corners", data_format="NCX"
    )
    given = output_gradient.astype(kind)
    result = evaluate(operator, given, expected.shape).astype(np.float64)
    terms = reach = np.abs(output_gradient)
    for axis in range(2, terms.ndim):
        src, dst = expected.shape[axis], given.shape[axis]
        taps = ExactTaps.of(src, dst, align_corners=True, nearest=False)
        reach, terms = taps.scatter(reach, axis, 4 * 2.0**-24 * src), taps.scatter(terms, axis)
    allowed = (reach - terms) + 2.0**-21 * terms + ulp(expected, kind)
    assert np.all(np.abs(result - expected) <= allowed)


@pytest.mark.parametrize("number", range(60))
def test_stored_gradients_of_torch_are_reproduced(number):
    check_corners(*CORNERS[number])
