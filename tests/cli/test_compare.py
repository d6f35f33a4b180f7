"""`gradwire compare`: equal bits or not, how far apart, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradwire.cli.compare import difference
from support.command_line import run_here

NEAREST = ("--op", "interpolate_backward", "--attr", "mode=nearest", "--attr", "data_format=NCX")
LINEAR = ("--op", "interpolate_backward", "--attr", "mode=linear", "--attr", "data_format=NCX")
DML_NEAREST = ("--op", "dml_resample_grad", "--attr", "interpolation_mode=nearest")
DML_LINEAR = ("--op", "dml_resample_grad", "--attr", "interpolation_mode=linear")
SHAPES = ("--input-shape", "1,1,2", "--output-shape", "1,1,4")


def test_equal_bits_end_with_0_and_a_tie_is_explained_by_a_server_of_its_own() -> None:
    done = run_here("compare", *LINEAR, *DML_LINEAR, *SHAPES)
    assert (done.code, done.stderr) == (0, "")
    assert "equal bits: 4 elements of float32 (1, 1, 4)" in done.stdout
    done = run_here("compare", *NEAREST, *DML_NEAREST, *SHAPES)
    assert (done.code, done.stderr) == (9, "")
    assert "different: 4 of 4 elements of float32 (1, 1, 4)" in done.stdout
    assert "axis 2: input 0 is read by (taps differ)" in done.stdout
    assert "       0           0.5       -           0.5       1\n" in done.stdout


def test_json_tells_the_same(target: str) -> None:
    shared = ("--target", target, "--dtype", "float64", "--seed", "3", "--json")
    facts = json.loads(run_here("compare", *NEAREST, *DML_NEAREST, *SHAPES, *shared).stdout)
    x = np.random.default_rng(3).standard_normal((1, 1, 2))
    assert (facts["equal"], facts["different"], facts["dtype"]) == (False, 4, "float64")
    assert facts["first"] == {"index": [0, 0, 0], "A": 0.0, "B": x[0, 0, 0]}
    (reason,) = (each for each in facts["why"] if each["axis"] == 2)
    assert reason["differ"] == ["taps"]
    assert reason["sides"] == [[], [{"given": 0, "coordinate": 0.5, "weight": 1.0}]]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_a_result_from_elsewhere_is_compared_by_its_bits(
    tmp_path: Path, target: str, dtype: np.dtype[Any]
) -> None:
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(x, np.array([[[1, np.nan, 3, 4]]]).astype(dtype))
    expected = np.array([[[np.nan, 7]]]).astype(dtype)
    np.save(y, expected)
    asked = (*NEAREST, "--input", x, "--output-shape", "1,1,2", "--against", y, "--target", target)
    named = ("--dtype", str(dtype))
    assert run_here("compare", *asked, *named).code == 0
    expected[0, 0, 1] = np.nextafter(expected[0, 0, 1], np.array(np.inf, dtype))
    np.save(y, expected)
    done = run_here("compare", *asked, *named)
    assert done.code == 9
    assert "first at [0, 0, 1]: A 7, B 7.0" in done.stdout
    assert "or 1 ulps apart" in done.stdout
    assert "axis 2: input 1 is read by\n" in done.stdout
    done = run_here("compare", *asked[:-4], "--against", x, "--target", target, *named)
    assert done.code == 2
    assert f"holds {dtype} (1, 1, 4); ours is {dtype} (1, 1, 2)" in done.stderr


def test_zeros_of_two_signs_differ_and_nans_do_not() -> None:
    nan = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    assert difference(nan[:1], nan[1:]) is None
    found = difference(np.zeros((2, 1)), np.array([[0.0], [-0.0]]))
    assert found is not None
    assert (found.count, found.first, found.ulps) == (1, (1, 0), 0)
    broken = difference(np.array([1.0, np.nan, 3.0]), np.array([1e300, 0.0, 3.0]))
    assert broken is not None
    assert (broken.first, broken.largest, broken.ulps) == ((0,), (1,), np.inf)
