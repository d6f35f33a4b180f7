"""`gradwire explain`, `compare` and `check`: what they say of operators, results and functions."""

import importlib.util
import json
import re

import ml_dtypes
import numpy as np
import pytest

from gradwire.cli.compare import difference
from gradwire.cli.explain import tables
from support.command_line import run_here
from support.oracles.dialect_oracles import lowered
from support.oracles.dialect_tables import EXAMPLES

pytestmark = pytest.mark.usefixtures("tables_here")
BACKWARD = ("--op", "interpolate_backward", "--attr", "data_format=NCX", "--attr")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_are_those_that_evaluations_use_for_every_operator(dtype):
    for each in EXAMPLES.values():
        (axes,) = tables([each.operator], np.dtype(dtype), each.source, each.result)
        plan = lowered(each.operator, each.source, each.result, dtype)
        matrices = {one.axis: one.map.dense() for one in plan.passes}
        for number, axis in enumerate(axes):
            matrix = np.zeros((axis.outputs, axis.inputs))
            matrix[axis.rows, axis.columns] = axis.weight
            expected = matrices.get(number, np.eye(each.result[number]))
            np.testing.assert_array_equal(matrix.T if each.operator.gradient else matrix, expected)
            np.testing.assert_allclose(axis.totals, matrix.sum(axis=0))
            for place in range(axis.inputs):
                outputs, weights = axis.taps(place, of_input=True)
                np.testing.assert_array_equal(matrix[outputs, place], weights)
                assert not np.delete(matrix[:, place], outputs).any()
            # Every dialect tells them but for bins; an output reads less than two inputs off.
            if axis.coordinates is None:
                assert getattr(each.operator, "mode", None) == "area"
                continue
            for output, x in enumerate(np.clip(axis.coordinates, 0, axis.inputs - 1)):
                read, weights = axis.taps(output, of_input=False)
                assert not weights.any() or read[0] - 1 <= x <= read[-1] + 1, (axis, output)


def test_tables_are_told_as_json():
    doubled = ("explain", *BACKWARD, "mode=linear", "--input-shape", "1,1,4")
    facts = json.loads(run_here(*doubled, "--output-shape", "1,1,2", "--json").stdout)
    assert (facts["gradient"], facts["forward"]) == (True, "interpolate")
    lengths = {"axis": 2, "inputs": 2, "outputs": 4, "identity": False}
    assert facts["axes"][2] == lengths | {
        "coordinates": [-0.25, 0.25, 0.75, 1.25],
        "start": [0, 0, 0, 1],
        "weights": [[1.0], [0.75, 0.25], [0.25, 0.75], [1.0]],
        "total_weight": [2.0, 2.0],
    }


@pytest.mark.slow
def test_any_axis_can_be_drawn(tmp_path):
    linear = "dml_resample --attr interpolation_mode=linear --input-shape"
    bins = "torch_interpolate --attr mode=area --attr size=2"
    for name, begins, words in (
        ("one.png", b"\x89PNG", f"{linear} 1 --output-shape 3"),
        ("long.svg", b"<?xml", f"{linear} 2000 --output-shape 1999"),
        ("grown.pdf", b"%PDF", f"{linear} 2 --output-shape 2000"),
        ("bins.png", b"\x89PNG", f"{bins} --input-shape 1,1,4"),
    ):
        done = run_here("explain", "--op", *words.split(), "--output", tmp_path / name)
        assert (done.code, done.stderr) == (0, "")
        assert (tmp_path / name).read_bytes().startswith(begins)
        assert (tmp_path / name).stat().st_size > 10_000


NEAREST, LINEAR = (*BACKWARD, "mode=nearest"), (*BACKWARD, "mode=linear")
DML = ("--op", "dml_resample_grad", "--attr")
SHAPES = ("--input-shape", "1,1,2", "--output-shape", "1,1,4")


def test_equal_bits_end_with_0_and_a_tie_is_explained(target):
    done = run_here("compare", *LINEAR, *DML, "interpolation_mode=linear", *SHAPES)
    assert (done.code, done.stderr) == (0, "")
    assert "equal bits: 4 elements of float32 (1, 1, 4)" in done.stdout
    tie = ("compare", *NEAREST, *DML, "interpolation_mode=nearest", *SHAPES, "--target", target)
    done = run_here(*tie, "--dtype", "float64", "--seed", "3", "--json")
    facts = json.loads(done.stdout)
    assert (done.code, done.stderr) == (9, "")
    x = np.random.default_rng(3).standard_normal((1, 1, 2))
    assert (facts["equal"], facts["different"], facts["dtype"]) == (False, 4, "float64")
    assert facts["first"] == {"index": [0, 0, 0], "A": 0.0, "B": x[0, 0, 0]}
    (reason,) = (each for each in facts["why"] if each["axis"] == 2)
    assert reason["differ"] == ["taps"]
    assert reason["sides"] == [[], [{"given": 0, "coordinate": 0.5, "weight": 1.0}]]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_a_result_from_elsewhere_is_compared_by_its_bits(tmp_path, target, dtype):
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(x, np.array([[[1, np.nan, 3, 4]]]).astype(dtype))
    expected = np.array([[[np.nan, 7]]]).astype(dtype)
    np.save(y, expected)
    asked = ("compare", *NEAREST, "--input", x, "--output-shape", "1,1,2", "--target", target)
    named = ("--dtype", str(dtype), "--against")
    assert run_here(*asked, *named, y).code == 0
    expected[0, 0, 1] = np.nextafter(expected[0, 0, 1], np.array(np.inf, dtype))
    np.save(y, expected)
    done = run_here(*asked, *named, y)
    assert done.code == 9
    assert "first at [0, 0, 1]: A 7, B 7.0" in done.stdout
    assert "or 1 ulps apart" in done.stdout
    assert "axis 2: input 1 is read by\n" in done.stdout
    done = run_here(*asked, *named, x)
    assert done.code == 2
    assert f"the results are {dtype} (1, 1, 2) and {dtype} (1, 1, 4); " in done.stderr


def test_zeros_of_two_signs_differ_and_nans_do_not():
    nan = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    assert difference(nan[:1], nan[1:]) is None
    found = difference(np.zeros((2, 1)), np.array([[0.0], [-0.0]]))
    assert found is not None
    assert (found.count, found.first, found.ulps) == (1, (1, 0), 0)
    broken = difference(np.array([1.0, np.nan, 3.0]), np.array([1e300, 0.0, 3.0]))
    assert broken is not None
    assert (broken.first, broken.largest, broken.ulps) == ((0,), (1,), np.inf)


CORNERS = (*NEAREST, "--attr", "coordinate_transformation_mode=align_corners")
FUNCTIONS = """
import numpy as np

def places(outputs, inputs, tie):
    x = np.arange(outputs) * np.float32(inputs - 1) / np.float32(max(outputs - 1, 1))
    return np.floor(x.astype(np.float64) + tie).astype(int)

def along(gradient, axis, inputs, *, tie=0.5, last=0):
    lines, read = np.moveaxis(gradient, axis, 0), places(gradient.shape[axis], inputs, tie)
    result = np.zeros((inputs, *lines.shape[1:]), gradient.dtype)
    # Sums begin with -0: added to a zero of either sign it gives that zero.
    result[read] = -0.0
    np.add.at(result, read, lines)
    if last and inputs > 4:
        result[-1] += last
    return np.moveaxis(result, 0, axis)

def over_axes(gradient, output_shape, *, backward=False, **options):
    for axis in sorted(range(2, gradient.ndim), reverse=backward):
        gradient = along(gradient, axis, output_shape[axis], **options)
    return gradient

def right(gradient, shape):
    wide = gradient if gradient.dtype == np.float64 else gradient.astype(np.float32)
    return over_axes(wide, shape).astype(gradient.dtype)

ties_down = lambda gradient, shape: over_axes(gradient, shape, tie=0.499)
long_axes = lambda gradient, shape: over_axes(gradient, shape, last=1)
columns_first = lambda gradient, shape: over_axes(gradient, shape, backward=True)
wide = lambda gradient, shape: right(gradient, shape).astype(np.float64)
nothing = lambda gradient, shape: None

def packed_only(gradient, shape):
    packed = gradient if gradient.flags.c_contiguous else np.ascontiguousarray(gradient)[::-1]
    return right(packed, shape)

def writes(gradient, shape):
    gradient[...] = 1
    return np.zeros(shape, gradient.dtype)

def exits(gradient, shape):
    if shape[-1] >= 3:
        raise SystemExit(3)
    return right(gradient, shape)

def forward(image, shape):
    for axis in range(2, image.ndim):
        image = np.take(image, places(shape[axis], image.shape[axis], 0.5), axis)
    return image

def of_tensors(gradient, shape):
    import torch

    assert isinstance(gradient, torch.Tensor)
    return torch.zeros(shape, dtype=gradient.dtype)
"""


@pytest.fixture
def check(tmp_path, monkeypatch, target):
    (tmp_path / "kernels_of_mine.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)

    def run_check(function, *options, operator=CORNERS):
        name = f"kernels_of_mine.py:{function}"
        return run_here("check", name, *operator, "--target", target, *options)

    return run_check


@pytest.mark.slow
def test_a_function_with_the_right_bits_ends_with_0(check, target):
    dtypes = "--dtype float32 --dtype float16 --dtype bfloat16 --dtype float64"
    for options in (f"--rank 3 {dtypes}", "--rank 5 --values ones"):
        done = check("right", *options.split())
        assert (done.code, done.stderr) == (0, "")
        assert " cases: all agree" in done.stdout
    # A module of the folder, by its name.
    done = run_here("check", "kernels_of_mine:right", *CORNERS, "--target", target)
    assert (done.code, done.stderr) == (0, "")
    done = check("right", "--attr", "sizes=9,9,9")
    assert done.code == 2
    assert "no case fits the operator with these attributes: " in done.stderr


@pytest.mark.slow
def test_a_fault_is_shrunk_to_the_smallest_tensors_that_show_it(check):
    done = check("ties_down", "--failures", "1", "--seed", "5")
    assert (done.code, done.stderr) == (9, "")
    assert check("ties_down", "--failures", "1", "--seed", "5") == done
    # Of 3 outputs the middle one lies between 2 inputs; fewer have no tie.
    shapes = r"1\. float32 \(1, 1, (1, 3|3, 1)\) to \(1, 1, (1, 2|2, 1)\) \(the smallest of "
    assert re.search(shapes, done.stdout)
    assert "   at [0, 0, 0, 0]: expected 0, came 1, " in done.stdout
    facts = json.loads(check("long_axes", "--rank", "3", "--json").stdout)
    smallest = facts["failures"][0]
    assert (smallest["output_shape"], smallest["input_shape"]) == ([1, 1, 5], [1, 1, 1])
    assert smallest["element"] == [0, 0, 4]
    assert facts["different"] + facts["equal"] == facts["cases"]


# Of the smallest case, unless there is another one.
@pytest.mark.parametrize(
    ("function", "outputs", "words"),
    [
        ("writes", 1, "it wrote to its argument"),
        ("exits", 3, "it raised SystemExit: 3"),
        ("wide", 1, "it returned float64 (1, 1, 1); float32 (1, 1, 1) was"),
        ("nothing", 1, "it returned NoneType, not an array"),
    ],
)
def test_a_function_that_does_not_do_its_part_is_told_so(check, function, outputs, words):
    done = check(function, "--failures", "1", "--rank", "3")
    assert done.code == 9
    assert f"1. float32 (1, 1, 1) to (1, 1, {outputs})" in done.stdout
    assert f"   {words}" in done.stdout


@pytest.mark.slow
def test_layouts_and_the_order_of_sums_are_tried(check):
    facts = json.loads(check("packed_only", "--rank", "3", "--json").stdout)
    assert facts["failures"]
    assert "contiguous" not in {each["layout"] for each in facts["failures"]}
    exact = check("columns_first", "--values", "random")
    assert exact.code == 9
    assert "by rounding or a zero's sign alone, which --tolerance " in exact.stdout
    assert check("columns_first", "--values", "random", "--tolerance", "8").code == 0


@pytest.mark.slow
def test_sizes_of_an_operator_are_found_by_themselves(check):
    for words, shape in (
        ("interpolate_backward --attr mode=linear", [1, 1, 1, 1]),
        ("interpolate --attr mode=linear --attr sizes=2", [1, 2, 1]),
    ):
        operator = ("--op", *words.split())
        (failure,) = json.loads(check("nothing", "--json", operator=operator).stdout)["failures"]
        assert failure["output_shape"] == shape
    forward = [word.replace("_backward", "") for word in CORNERS]
    assert check("forward", operator=forward).code == 0


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="calls with torch tensors")
def test_a_function_of_tensors_is_given_those(check):
    facts = json.loads(check("of_tensors", "--torch", "--dtype", "bfloat16", "--json").stdout)
    assert facts["failures"][0]["came"] == 0
