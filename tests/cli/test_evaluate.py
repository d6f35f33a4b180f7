"""Commands that call servers: `evaluate`, `demo`, `operators`, `info` and `health`."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from subprocess import DEVNULL, PIPE
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import trustme

from gradwire import Client, ops
from gradwire.cli import connection
from gradwire.errors import GradwireError, UnavailableError
from gradwire.health import health
from gradwire.loadtest.result import from_json
from gradwire_server.config.settings import Settings
from support.certificates import Papers, pair
from support.command_line import run_here
from support.processes import run_command
from support.raw_calls import wait_until
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


def test_the_published_example_goes_round_also_through_a_server_of_its_own(tmp_path, target):
    asked = (*SCALED, "--output-shape", "2,2", "--json")
    done = evaluated(tmp_path, target, GRADIENT, *asked)
    facts = json.loads(done.stdout)
    assert (done.code, done.stderr) == (0, "")
    seconds, rate = facts.pop("seconds"), facts.pop("mb_per_s_up")
    assert rate == pytest.approx(12e-6 / seconds, abs=1e-3)
    told = {"dtype": "float32", "bytes_up": 12, "bytes_down": 16, "output_shape": [2, 2]}
    assert facts.items() >= told.items()
    # These are for other servers.
    env = {"GRADWIRE_LOG_FORMAT": "json", "GRADWIRE_TLS_KEY": "none.pem"}
    files = (str(tmp_path / name) for name in ("x.npy", "own.npy"))
    done = run_command("evaluate", *files, *asked[:-1], env=env, program=("-m", "gradwire"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "dml_resample_grad: float32 (1, 3) to (2, 2) in" in done.stderr
    for name in ("y.npy", "own.npy"):
        np.testing.assert_array_equal(np.load(tmp_path / name), RESULT)
    assert names(tmp_path) == ["own.npy", "x.npy", "y.npy"]


@pytest.mark.parametrize(("dtype", "order"), [("<f4", "C"), (">f4", "F")])
def test_several_servers_share_a_tensor_larger_than_a_chunk_in_any_order(
    tmp_path, target, dtype, order
):
    x = np.random.default_rng(0).standard_normal((3, 5, 100_000)).astype(dtype, order=order)
    options = (*DOUBLE, "sizes=200000", "--output-shape", "3,5,200000")
    with serving() as other:
        for several, more in ((target, ()), (f"{target},{other.address}", ("--split",))):
            done = evaluated(tmp_path, several, x, *options, *more, "--json")
            assert json.loads(done.stdout)["dtype"] == "float32"
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
    for more in (("--target", target), ()):  # without one, by a server of its own
        done = run_here("demo", "--iterations", 8, "--output", path, "--json", *more)
        assert done.code == 0
        facts = json.loads(done.stdout)
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        path.unlink()
        losses = facts["losses"]
        assert len(losses) == 9
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0] / 2
        assert facts["reconstruction_db"] > facts["bilinear_db"]
    assert " dB" in run_here("demo", "--iterations", 1, "--output", path, "--target", target).stdout


def test_one_of_several_servers_tells_itself_also_by_the_environment(target, nobody, monkeypatch):
    monkeypatch.setenv("GRADWIRE_TARGET", f"{nobody},{target}")
    done = run_here("health", "--json")
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"target": f"{nobody},{target}", "status": "SERVING"}
    facts = json.loads(run_here("info", "--json").stdout)
    assert facts["limits"]["max_streams"] == Settings().max_streams
    assert facts["backend"] in run_here("info").stdout


def test_operators_are_listed_in_words_and_as_json(target):
    facts = json.loads(run_here("operators", "--json", "--target", target).stdout)
    with Client(target) as client:
        told = client.operators()
    listed = run_here("operators", "--target", target).stdout
    names = re.findall(r"^(\w+)", listed, re.MULTILINE)[: len(ops.OPERATORS)]
    assert [each["name"] for each in facts] == [info.name for info in told] == names
    assert facts[0]["attributes"][0]["allowed_values"] == [*told[0].attributes[0].allowed_values]
    assert run_here("operators", "resample", "--target", target).code == 3
    # One is told as the command line takes it.
    for info in told:
        shown = run_here("operators", info.name, "--target", target).stdout
        assert re.findall(r"--attr (\w+)=", shown) == [each.name for each in info.attributes]
        assert "DATA_FORMAT" not in shown
        assert "MODE_" not in shown


def test_why_there_is_no_local_server_is_said_in_one_line(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("GRADWIRE_MAX_STREAMS", "none")
        wrong = run_here("info")
    monkeypatch.setattr(connection, "SERVER", "a_package_that_is_not_there")
    for done, words in (
        (wrong, "is not a valid integer"),
        (run_here("info"), 'pip install "gradwire[server]'),
    ):
        assert (done.code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert words in done.stderr


# Programs inherit an ignored SIGINT, and tests in the background may have it.
HOLDER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gradwire.cli.connection import local_server
with local_server() as (target, _):
    print(target, flush=True)
    input()
"""


def is_gone(target):
    try:
        health(target, timeout_s=1)
    except UnavailableError:
        return True
    except GradwireError:
        pass  # it is on its way out
    return False


@pytest.mark.parametrize(("number", "within_s"), [(signal.SIGINT, 10), (signal.SIGKILL, 15)])
def test_a_local_server_does_not_outlive_its_command(number, within_s):
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", HOLDER], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        target = process.stdout.readline().strip()
        assert health(target) == "SERVING"
        process.send_signal(number)
        process.wait(timeout=10)
        wait_until(lambda: is_gone(target), patience_s=within_s)


@pytest.fixture(scope="module")
def mutual(tmp_path_factory):
    """Run a server that lets in clients of one authority; give options of commands."""
    papers = Papers(tmp_path_factory.mktemp("papers"))
    pairs = []
    for authority in (papers.authority, trustme.CA()):
        key, certificate = (tmp_path_factory.mktemp("pair") / name for name in ("key", "own"))
        for file, content in zip((key, certificate), pair(authority), strict=True):
            file.write_bytes(content)
        pairs.append(("--tls-certificate", str(certificate), "--tls-key", str(key)))
    with serving(**papers.mutual, http_port="0") as server:
        target = ("--target", server.address, "--tls-ca", papers.mutual["tls_client_ca"])
        own, other = pairs
        yield SimpleNamespace(target=target, http=server.http_address, pair=own, of_another=other)


def test_a_client_of_the_authority_is_let_in_and_no_other(mutual):
    for command in ("info", "health"):
        for shown, code in ((mutual.pair, 0), ((), 7), (mutual.of_another, 7)):
            done = run_here(command, *mutual.target, *shown)
            assert (done.code, bool(done.stdout)) == (code, code == 0)
            assert done.stderr.startswith("gradwire: error: ") if code else not done.stderr


@pytest.mark.slow
def test_a_load_test_shows_it_with_every_call_and_to_the_metrics(mutual, tmp_path):
    found = tmp_path / "found.json"
    done = run_here(
        *("bench", *mutual.target, *mutual.pair),
        *("--metrics", f"https://{mutual.http}/metrics", "--output", found),
        *("--scenario", "tiny", "--scenario", "large", "--duration", 1.5, "--warm-up", 0),
    )
    assert (done.code, done.stderr) == (0, "")
    scenarios = from_json(found.read_text()).scenarios
    assert all(scenario.flows[0].ok for scenario in scenarios)
    # A busy machine may leave no time for two readings of each.
    assert any(scenario.server for scenario in scenarios)


def test_tls_trusts_the_authorities_of_the_system(mutual, monkeypatch):
    call = ("info", *mutual.target[:2], *mutual.pair)
    monkeypatch.setenv("SSL_CERT_FILE", mutual.target[3])
    for option, variable in ((["--tls"], ""), ([], "1")):
        monkeypatch.setenv("GRADWIRE_TLS", variable)
        done = run_here(*call, *option)
        assert (done.code, done.stderr) == (0, "")


def test_a_file_that_is_none_or_no_pem_is_named_before_anything_is_sent(mutual, tmp_path):
    (tmp_path / "wrong.pem").write_text("no PEM")
    mixed = [*mutual.pair[:2], *mutual.of_another[2:]]
    cases = [(mixed, ["--tls-certificate", "KEY_VALUES_MISMATCH"])]
    for option in ("--tls-ca", "--tls-certificate", "--tls-key"):
        for name, words in (("wrong.pem", "cannot be used"), ("nowhere.pem", "does not exist")):
            papers = [*mutual.target, *mutual.pair]
            papers[papers.index(option) + 1] = f"{tmp_path}/{name}"
            cases.append((papers, [option, f"{tmp_path}/{name}", words]))
    for papers, told in cases:
        # Nobody listens there.
        done = run_here("health", *mutual.target, *papers, "--target", "127.0.0.1:1")
        assert (done.code, done.stdout) == (2, "")
        assert all(word in done.stderr for word in told), done.stderr
