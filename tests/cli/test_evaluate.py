"""`gradwire evaluate` and `gradwire demo`, against real servers."""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from support.command_line import Outcome, run, run_here
from support.servers import serving

PUBLISHED = ("--op", "dml_resample_grad", "--attr", "interpolation_mode=nearest")
SCALES = ("--attr", "scales=0.5,1.5")
DOUBLE = ("--op", "interpolate", "--attr", "mode=nearest", "--attr", "data_format=NCX")


def f32(values: object) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def saved(path: Path, array: npt.NDArray[Any]) -> Path:
    np.save(path, array)
    return path


def evaluate_published(folder: Path, *options: object) -> Outcome:
    gradient = saved(folder / "gradient.npy", f32([[4, 5, 6]]))
    return run_here("evaluate", gradient, folder / "result.npy", *PUBLISHED, *options)


def test_the_published_example_goes_round_also_through_a_server_of_its_own(
    tmp_path: Path, target: str
) -> None:
    gradient = saved(tmp_path / "gradient.npy", f32([[4, 5, 6]]))
    result = tmp_path / "result.npy"
    asked = ("evaluate", gradient, result, *PUBLISHED, *SCALES, "--output-shape", "2,2")
    done = run(*asked)
    assert (done.code, done.stdout) == (0, "")
    assert "dml_resample_grad: float32 (1, 3) to (2, 2) in" in done.stderr
    np.testing.assert_array_equal(np.load(result), f32([[9, 6], [0, 0]]))
    assert sorted(tmp_path.iterdir()) == [gradient, result]
    done = run_here(*asked, "--json", "--target", target)
    facts = json.loads(done.stdout)
    assert (done.code, done.stderr) == (0, "")
    seconds, rate = facts.pop("seconds"), facts.pop("mb_per_s_up")
    assert rate == pytest.approx(12e-6 / seconds, abs=1e-3)
    told = {"dtype": "float32", "bytes_up": 12, "bytes_down": 16, "output_shape": [2, 2]}
    assert facts.items() >= told.items()


def doubled(folder: Path, target: str, x: npt.NDArray[Any], *options: str) -> npt.NDArray[Any]:
    """Return what is written when the last axis of an array is doubled."""
    source, result = saved(folder / "x.npy", x), folder / "y.npy"
    done = run_here("evaluate", source, result, *DOUBLE, *options, "--target", target)
    assert done.code == 0, done.stderr
    written: npt.NDArray[Any] = np.load(result)
    return written


@pytest.mark.parametrize("order", ["C", "F"])
def test_several_servers_share_a_tensor_larger_than_a_chunk_in_any_axis_order(
    tmp_path: Path, target: str, order: Any
) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 100_000)).astype(np.float32, order=order)
    options = ("--attr", "sizes=200000", "--output-shape", "3,5,200000")
    with serving() as other:
        one = doubled(tmp_path, target, x, *options)
        several = doubled(tmp_path, f"{target},{other.address}", x, *options, "--split")
    for written in (one, several):
        np.testing.assert_array_equal(written, x.repeat(2, axis=2))


def test_bfloat16_is_read_and_written_by_its_bytes_and_attributes_tell_a_shape(
    tmp_path: Path, target: str
) -> None:
    x = np.arange(6).astype(ml_dtypes.bfloat16).reshape(1, 1, 6)
    options = ("--dtype", "bfloat16", "--attr")
    for more in (("scales=2",), ("sizes=12",), ("sizes=12", "--output-shape", "1,1,12")):
        written = doubled(tmp_path, target, x, *options, *more)
        np.testing.assert_array_equal(written.view(ml_dtypes.bfloat16), x.repeat(2, axis=2))


def test_the_result_may_take_the_place_of_the_input(tmp_path: Path, target: str) -> None:
    path = saved(tmp_path / "x.npy", f32([[[1, 2]]]))
    done = run_here("evaluate", path, path, *DOUBLE, "--attr", "sizes=4", "--target", target)
    assert done.code == 0, done.stderr
    np.testing.assert_array_equal(np.load(path), f32([[[1, 1, 2, 2]]]))


def test_a_failed_call_leaves_the_old_result_and_nothing_else(tmp_path: Path, target: str) -> None:
    old = saved(tmp_path / "result.npy", f32([7]))
    done = evaluate_published(
        tmp_path, "--attr", "scales=1", "--output-shape", "2,2", "--target", target
    )
    assert done.code == 2
    assert done.stderr.startswith("gradwire: error: --attr scales: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gradient.npy", "result.npy"]
    np.testing.assert_array_equal(np.load(old), f32([7]))


def test_a_result_without_room_for_it_is_told_with_its_size_and_folder(
    tmp_path: Path, target: str
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        done = evaluate_published(tmp_path, "--output-shape", "1000,1000", "--target", target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    assert f"no room for 4.0 MB in {tmp_path}: " in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["gradient.npy"]


@pytest.mark.parametrize("shape", [(), ("--output-shape", "2,2")])
def test_a_pipe_is_refused_and_a_link_followed_and_neither_replaced(
    tmp_path: Path, target: str, shape: tuple[str, ...]
) -> None:
    result, file = tmp_path / "result.npy", tmp_path / "elsewhere.npy"
    os.mkfifo(result)
    options = (*SCALES, *shape, "--target", target)
    assert evaluate_published(tmp_path, *options).code == 2
    assert result.is_fifo()
    result.unlink()
    result.symlink_to(file)
    done = evaluate_published(tmp_path, *options)
    assert result.is_symlink()
    if shape:
        assert done.code == 0
        np.testing.assert_array_equal(np.load(file), [[9, 6], [0, 0]])


def test_the_loss_of_the_demo_falls_and_a_picture_is_written(tmp_path: Path, target: str) -> None:
    path = tmp_path / "demo.png"
    done = run_here("demo", "--iterations", 8, "--output", path, "--target", target, "--json")
    facts, losses = json.loads(done.stdout), json.loads(done.stdout)["losses"]
    assert (done.code, facts["output"], facts["calls"]) == (0, str(path), 17)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    steps = re.findall(r"^ *(\d+) +([\d.]+) +[\d.]+ dB$", done.stderr, re.MULTILINE)
    assert steps == [(str(step), f"{loss:.4f}") for step, loss in enumerate(losses)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
    assert facts["reconstruction_db"] > facts["bilinear_db"]
