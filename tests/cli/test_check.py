"""`gradwire check`: what it finds in functions of all kinds, and how little it takes to show it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.command_line import Outcome, run, run_here

NEAREST = (
    *("--op", "interpolate_backward", "--attr", "mode=nearest", "--attr", "data_format=NCX"),
    *("--attr", "coordinate_transformation_mode=align_corners"),
)
Check = Callable[..., Outcome]
FUNCTIONS = """
import numpy as np

def along(gradient, axis, inputs, *, tie=0.5, last=0):
    outputs = gradient.shape[axis]
    x = np.arange(outputs).astype(np.float32)
    if outputs > 1:
        x = x * np.float32(inputs - 1) / np.float32(outputs - 1)
    lines = np.moveaxis(gradient, axis, 0)
    result = np.zeros((inputs, *lines.shape[1:]), gradient.dtype)
    seen = set()
    for output, place in enumerate(np.floor(x.astype(np.float64) + tie).astype(int)):
        if place in seen:
            result[place] += lines[output]
        else:
            result[place] = lines[output]
        seen.add(place)
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
shapeless = lambda gradient, shape: np.zeros((1,), gradient.dtype)
nothing = lambda gradient, shape: None

def packed_only(gradient, shape):
    packed = gradient if gradient.flags.c_contiguous else np.ascontiguousarray(gradient)[::-1]
    return right(packed, shape)

def writes(gradient, shape):
    gradient[...] = 1
    return np.zeros(shape, gradient.dtype)

def raises(gradient, shape, kind=ValueError, text="no threes"):
    if shape[-1] >= 3:
        raise kind(text)
    return right(gradient, shape)

exits = lambda gradient, shape: raises(gradient, shape, SystemExit, 3)

def forward(image, shape):
    for axis in range(2, image.ndim):
        inputs, outputs = image.shape[axis], shape[axis]
        x = np.arange(outputs) * np.float32(inputs - 1) / np.float32(max(outputs - 1, 1))
        image = np.take(image, np.floor(x.astype(np.float64) + 0.5).astype(int), axis)
    return image

def three_off(gradient, shape):
    result = right(gradient, shape)
    for _ in range(3):
        result = np.nextafter(result, np.float32(np.inf), where=result != 0, out=result)
    return result

def of_tensors(gradient, shape):
    import torch

    assert isinstance(gradient, torch.Tensor)
    return torch.zeros(shape, dtype=gradient.dtype)
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> Check:
    (tmp_path / "kernels_of_mine.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)

    def run_check(function: str, *options: str, operator: Sequence[str] = NEAREST) -> Outcome:
        name = f"kernels_of_mine.py:{function}"
        return run_here("check", name, *operator, "--target", target, *options)

    return run_check


@pytest.mark.parametrize(
    "options",
    [
        *(("--dtype", dtype) for dtype in ("float32", "float16", "bfloat16", "float64")),
        *(("--rank", rank) for rank in ("3", "5")),
    ],
    ids=" ".join,
)
def test_a_function_with_the_right_bits_ends_with_0(check: Check, options: tuple[str, ...]) -> None:
    done = check("right", *options)
    assert (done.code, done.stderr) == (0, "")
    assert " cases: all agree" in done.stdout


def test_a_module_of_the_folder_is_imported_and_attributes_that_fit_no_case_refused(
    check: Check,
) -> None:
    done = run("check", "kernels_of_mine:right", *NEAREST, "--values", "ones")
    assert (done.code, done.stderr) == (0, "")
    done = check("right", "--attr", "sizes=9,9,9")
    assert done.code == 2
    assert "no case fits the operator with these attributes: " in done.stderr
    assert done.stderr.endswith("; each case has its own sizes: leave sizes out, or give scales\n")


def test_a_fault_is_shrunk_to_the_smallest_tensors_that_show_it(check: Check) -> None:
    done = check("ties_down", "--failures", "1", "--seed", "5")
    assert (done.code, done.stderr) == (9, "")
    assert check("ties_down", "--failures", "1", "--seed", "5") == done
    # Of 3 outputs the middle one lies between 2 inputs; fewer have no tie.
    assert "1. float32 (1, 1, 1, 3) to (1, 1, 1, 2) (the smallest of" in done.stdout
    assert "   given 1 at [0, 0, 0, 1], else 0\n" in done.stdout
    assert "   at [0, 0, 0, 0]: expected 0, came 1, " in done.stdout
    assert "   axis 3: input 0 is read by\n" in done.stdout
    facts = json.loads(check("long_axes", "--json").stdout)
    smallest = facts["failures"][0]
    assert sorted(smallest["output_shape"]) == [1, 1, 1, 5]
    assert smallest["input_shape"] == [1, 1, 1, 1]
    assert smallest["element"] == [0, 0, *(size - 1 for size in smallest["output_shape"][2:])]
    assert facts["different"] + facts["equal"] == facts["cases"]


# Of the smallest case, unless there is another one.
@pytest.mark.parametrize(
    ("function", "outputs", "words"),
    [
        ("writes", 1, "it wrote to its argument"),
        ("raises", 3, "it raised ValueError: no threes"),
        ("exits", 3, "it raised SystemExit: 3"),
        ("shapeless", 1, "it returned shape (1,); (1, 1, 1, 1) was"),
        ("wide", 1, "it returned float64; float32 was given"),
        ("nothing", 1, "it returned NoneType, not an array"),
    ],
)
def test_a_function_that_does_not_do_its_part_is_told_so(
    check: Check, function: str, outputs: int, words: str
) -> None:
    done = check(function, "--failures", "1")
    assert done.code == 9
    assert f"1. float32 (1, 1, 1, 1) to (1, 1, 1, {outputs})" in done.stdout
    assert f"   {words}" in done.stdout


@pytest.mark.slow
def test_layouts_and_the_order_of_sums_are_tried(check: Check) -> None:
    facts = json.loads(check("packed_only", "--json").stdout)
    assert facts["failures"]
    assert "contiguous" not in {each["layout"] for each in facts["failures"]}
    exact = check("columns_first", "--values", "random")
    assert exact.code == 9
    assert "by rounding or a zero's sign alone, which --tolerance " in exact.stdout
    assert check("columns_first", "--values", "random", "--tolerance", "8").code == 0


def test_a_tolerance_is_told_with_those_that_differ_by_more_in_its_own_ulps(check: Check) -> None:
    options = ("--values", "ones", "--tolerance")
    passed = check("three_off", *options, "3")
    assert (passed.code, passed.stderr) == (0, "")
    assert " cases: all agree within 3 ulps\n" in passed.stdout
    failed = check("three_off", *options, "2")
    assert failed.code == 9
    assert re.search(r" cases: \d+ differ by more than 2 ulps\n", failed.stdout)
    assert re.search(r"expected 1, came 1\.0000004, 3 ulps off; ", failed.stdout)
    assert "which --tolerance 3 lets pass" in failed.stdout
    facts = json.loads(check("three_off", *options, "2", "--json").stdout)
    assert {each["ulps"] for each in facts["failures"]} == {3}


@pytest.mark.slow
def test_layouts_and_sizes_of_an_operator_are_found_by_themselves(check: Check) -> None:
    for words, shape in (
        (("interpolate_backward", "mode=linear"), [1, 1, 1, 1]),
        (("interpolate", "mode=linear", "--attr", "sizes=2"), [1, 2, 1]),
        (("dml_resample_grad", "interpolation_mode=linear"), [1, 1, 1, 1]),
    ):
        operator = ("--op", words[0], "--attr", *words[1:])
        (failure,) = json.loads(check("shapeless", "--json", operator=operator).stdout)["failures"]
        assert failure["output_shape"] == shape
    forward = [word.replace("_backward", "") for word in NEAREST]
    done = check("forward", operator=forward)
    assert (done.code, done.stderr) == (0, "")
    assert "do not fit" not in done.stdout
    done = check("right", operator=forward)
    assert (done.code, done.stderr) == (9, "")
    assert "expected" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="calls with torch tensors")
def test_a_function_of_tensors_is_given_those(check: Check) -> None:
    facts = json.loads(check("of_tensors", "--torch", "--dtype", "bfloat16", "--json").stdout)
    assert facts["failures"][0]["came"] == 0


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="says what is missing")
def test_without_torch_one_line_says_so(check: Check) -> None:
    done = check("of_tensors", "--torch")
    assert done.code == 1
    assert "PyTorch is not installed" in done.stderr
