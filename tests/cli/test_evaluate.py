"""`gradwire evaluate` and `gradwire demo`, against real servers."""

import json
import os
import re
import resource

import ml_dtypes
import numpy as np
import pytest

from support.command_line import run, run_here
from support.servers import serving

PUBLISHED = ("--op", "dml_resample_grad", "--attr", "interpolation_mode=nearest")
SCALED = (*PUBLISHED, "--attr", "scales=0.5,1.5")
DOUBLE = ("--op", "interpolate", "--attr", "mode=nearest", "--attr", "data_format=NCX", "--attr")
GRADIENT, RESULT = np.array([[4, 5, 6]], np.float32), np.array([[9, 6], [0, 0]], np.float32)


def evaluated(folder, target, x, *options):
    np.save(folder / "x.npy", x)
    return run_here("evaluate", folder / "x.npy", folder / "y.npy", *options, "--target", target)


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def test_the_published_example_goes_round_also_through_a_server_of_its_own(
    tmp_path, target, monkeypatch
):
    asked = (*SCALED, "--output-shape", "2,2", "--json")
    done = evaluated(tmp_path, target, GRADIENT, *asked)
    facts = json.loads(done.stdout)
    assert (done.code, done.stderr) == (0, "")
    seconds, rate = facts.pop("seconds"), facts.pop("mb_per_s_up")
    assert rate == pytest.approx(12e-6 / seconds, abs=1e-3)
    told = {"dtype": "float32", "bytes_up": 12, "bytes_down": 16, "output_shape": [2, 2]}
    assert facts.items() >= told.items()
    # These are for other servers.
    for name in ("LOG_FORMAT", "TLS_CERTIFICATE", "TLS_KEY"):
        monkeypatch.setenv(f"GRADWIRE_{name}", "json" if "LOG" in name else "none.pem")
    done = run("evaluate", tmp_path / "x.npy", tmp_path / "own.npy", *asked[:-1])
    assert (done.code, done.stdout) == (0, "")
    assert "dml_resample_grad: float32 (1, 3) to (2, 2) in" in done.stderr
    for name in ("y.npy", "own.npy"):
        np.testing.assert_array_equal(np.load(tmp_path / name), RESULT)
    assert names(tmp_path) == ["own.npy", "x.npy", "y.npy"]


@pytest.mark.parametrize("order", ["C", "F"])
def test_several_servers_share_a_tensor_larger_than_a_chunk_in_any_axis_order(
    tmp_path, target, order
):
    x = np.random.default_rng(0).standard_normal((3, 5, 100_000)).astype(np.float32, order=order)
    options = (*DOUBLE, "sizes=200000", "--output-shape", "3,5,200000")
    with serving() as other:
        for several, more in ((target, ()), (f"{target},{other.address}", ("--split",))):
            assert evaluated(tmp_path, several, x, *options, *more).code == 0
            np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x.repeat(2, axis=2))


def test_bfloat16_is_read_and_written_by_its_bytes_and_attributes_tell_a_shape(tmp_path, target):
    x = np.arange(6).astype(ml_dtypes.bfloat16).reshape(1, 1, 6)
    for more in (("scales=2",), ("sizes=12",), ("sizes=12", "--output-shape", "1,1,12")):
        assert evaluated(tmp_path, target, x, *DOUBLE, *more, "--dtype", "bfloat16").code == 0
        written = np.load(tmp_path / "y.npy").view(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(written, x.repeat(2, axis=2))
    # The result takes the place of the input.
    path = tmp_path / "x.npy"
    own = (*DOUBLE, "sizes=12", "--dtype", "bfloat16", "--target", target)
    assert run_here("evaluate", path, path, *own).code == 0
    np.testing.assert_array_equal(np.load(path).view(ml_dtypes.bfloat16), x.repeat(2, axis=2))


def test_a_failed_call_leaves_the_old_result_and_nothing_else(tmp_path, target):
    np.save(tmp_path / "y.npy", RESULT)
    wrong = (*PUBLISHED, "--attr", "scales=1", "--output-shape", "2,2")
    done = evaluated(tmp_path, target, GRADIENT, *wrong)
    assert done.code == 2
    assert done.stderr.startswith("gradwire: error: --attr scales: ")
    assert names(tmp_path) == ["x.npy", "y.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), RESULT)


def test_a_result_without_room_for_it_is_told_with_its_size_and_folder(tmp_path, target):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        done = evaluated(tmp_path, target, GRADIENT, *PUBLISHED, "--output-shape", "1000,1000")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    assert f"no room for 4.0 MB in {tmp_path}: " in done.stderr
    assert names(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("shape", [(), ("--output-shape", "2,2")])
def test_a_pipe_is_refused_and_a_link_followed_and_neither_replaced(tmp_path, target, shape):
    result, file = tmp_path / "y.npy", tmp_path / "elsewhere.npy"
    os.mkfifo(result)
    assert evaluated(tmp_path, target, GRADIENT, *SCALED, *shape).code == 2
    assert result.is_fifo()
    result.unlink()
    result.symlink_to(file)
    done = evaluated(tmp_path, target, GRADIENT, *SCALED, *shape)
    assert result.is_symlink()
    if shape:
        assert done.code == 0
        np.testing.assert_array_equal(np.load(file), RESULT)


@pytest.mark.slow
def test_the_loss_of_the_demo_falls_and_a_picture_is_written(tmp_path, target):
    path = tmp_path / "demo.png"
    done = run_here("demo", "--iterations", 8, "--output", path, "--target", target)
    assert (done.code, done.stderr) == (0, "")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert {"17 calls", "public domain"} <= {*re.findall("17 calls|public domain", done.stdout)}
    steps = re.findall(r"^ *(\d+) +([\d.]+) +[\d.]+ dB$", done.stdout, re.MULTILINE)
    losses = [float(loss) for _, loss in steps]
    assert [int(step) for step, _ in steps] == [*range(9)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
    bilinear, reconstruction = re.findall(r"([\d.]+) dB[,:]", done.stdout)
    assert float(reconstruction) > float(bilinear)
    other = tmp_path / "other.png"
    done = run_here("demo", "--iterations", 1, "--output", other, "--json")  # its own server
    facts = json.loads(done.stdout)
    assert (done.code, facts["output"], other.is_file()) == (0, str(other), True)
    np.testing.assert_allclose(facts["losses"], losses[:2], rtol=1e-3)
    assert facts["reconstruction_db"] > facts["bilinear_db"]
