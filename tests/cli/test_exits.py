"""How the commands end, and what they say of wrong requests and in their help."""

import shlex
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version

import ml_dtypes
import numpy as np
import pytest

from gradwire import errors
from gradwire._wire.environment import SERVER_VARIABLES
from gradwire._wire.statuses import no_server
from gradwire.cli import output
from gradwire_server.config.settings import Settings
from support.command_line import run_here
from support.processes import run_command

pytestmark = pytest.mark.usefixtures("tables_here")


def test_the_version_is_told_and_a_reader_may_leave():
    done, told = run_here("--version"), run_command("--version")
    assert (done.code, done.stdout) == (0, f"gradwire {version('gradwire')}\n")
    printed = f"gradwire-server {version('gradwire')}\n"
    assert (told.returncode, told.stdout, told.stderr) == (0, printed, "")
    command = ["/bin/bash", "-c", f"{sys.executable} -m gradwire --help | true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert (done.stdout, done.stderr) == ("", "")


def test_a_variable_that_is_no_setting_is_warned_of(monkeypatch):
    assert tuple(f"GRADWIRE_{each.name.upper()}" for each in fields(Settings)) == SERVER_VARIABLES
    monkeypatch.setenv("GRADWIRE_TOKENS", "")
    monkeypatch.setenv("GRADWIRE_TRAGET", "127.0.0.1:1")
    first, second = run_here("explain", "--op", "nothing", "--input-shape", "1").stderr.splitlines()
    words = "GRADWIRE_TRAGET is not a setting of gradwire; did you mean GRADWIRE_TARGET?"
    assert first == f"gradwire: warning: {words}"
    assert "warning" not in second


def every_kind(kind):
    return [kind, *(each for child in kind.__subclasses__() for each in every_kind(child))]


def test_every_error_of_the_sdk_has_the_code_that_help_documents():
    documented = {
        errors.InvalidRequestError: (2, "invalid request"),
        errors.UnsupportedOperatorError: (3, "does not know"),
        errors.LimitExceededError: (4, "limit"),
        errors.UseStreamError: (4, "limit"),
        errors.OverloadedError: (5, "overloaded"),
        errors.DeadlineExceededError: (6, "deadline"),
        errors.UnavailableError: (7, "no server"),
        errors.AuthenticationError: (8, "needs a token"),
        errors.PermissionDeniedError: (8, "does not permit"),
    }
    for kind in every_kind(errors.GradwireError):
        code, words = documented.get(kind, (1, "any other failure"))
        assert output.code_of(kind("")) == code
        (line,) = (line for line in output.HELP.splitlines() if line.split()[:1] == [str(code)])
        assert words in line
    # A fault of the program and a difference have none of these.
    assert output.code_of(KeyError("x")) is None
    assert output.DIFFERENT not in {output.OTHER, output.INVALID, *output.CODES.values()}


FILE = shlex.quote(__file__)
MODE = " --attr interpolation_mode=nearest"
DML = f"--op dml_resample_grad{MODE}"
EVALUATE = f"evaluate g.npy y.npy {DML}"
SHAPED = f"{EVALUATE} --output-shape 2,2"
NEAREST = "--op interpolate_backward --attr mode=nearest --attr data_format=NCX"
SHAPES = "--input-shape 1,1,2 --output-shape 1,1,4"
UNSIZED = f"explain {NEAREST.replace('nearest', 'linear')} --input-shape 1,1,4"
EXPLAIN = f"{UNSIZED} --output-shape 1,1,2"
CHECK = f"{NEAREST} --attr coordinate_transformation_mode=align_corners"
WRITTEN = " ... give a file that `gradwire bench --output` has written"

# Commands, with what they say.
WRONG = [
    (EVALUATE, "--output-shape is missing"),
    (f"{EVALUATE} --output-shape 2,-1", "'2,-1' is not a shape"),
    (f"{SHAPED} --attr scales=1,1 --attr scales=1,1", "scales is given twice"),
    (f"{SHAPED} --attr scale=1", "did you mean 'scales'?"),
    (f"{SHAPED} --attr scales=1,x", "--attr scales: is '1,x' (str); give"),
    (SHAPED.replace(MODE, ""), "interpolation_mode: is missing; give 'nearest_neighbor' "),
    (f"{SHAPED} --tls-ca {FILE}", "--tls-ca and --token-file need --target"),
    (f"{SHAPED} --tls-certificate {FILE} --tls-key {FILE}", "--tls-key needs --tls;"),
    (SHAPED.replace("y.npy", "-"), "'-' does not stand for standard output"),
    *(
        (SHAPED.replace("g.npy", name), f"{name} is not a .npy file of numbers")
        for name in ("empty", "text", "bytes")
    ),
    (
        SHAPED.replace("g.npy", "bfloat16.npy"),
        "holds |V2; ... if they are bfloat16, give --dtype bfloat16",
    ),
    (SHAPED.replace("g.npy", "integers.npy"), "integers.npy holds int32; give one of float32, "),
    (f"compare {NEAREST} {SHAPES}", "--op: give it twice, or once with --against"),
    (f"compare --attr mode=nearest {NEAREST} {NEAREST} {SHAPES}", "stands before any --op"),
    (f"compare {DML} --input g.npy --output-shape 2,2 --against text", "text is not a .npy file"),
    (f"{EXPLAIN} --output x.jpg", "end it in .png or .svg or .pdf"),
    (f"{EXPLAIN} --attr sizes=5", "sizes"),
    (UNSIZED, "the attributes of interpolate_backward do not determine its sizes"),
    (f"check none.py:f {CHECK}", "none.py cannot be imported: FileNotFoundError: "),
    (f"check mine.py:wrong {CHECK}", "mine.py has no function wrong; give the name of one"),
    (f"check mine.py:right {CHECK} --rank 1", "--rank: interpolate_backward takes tensors of 3 to"),
    (f"check exits.py:f {CHECK}", "exits.py cannot be imported: SystemExit: 0"),
    ("bench --rate 5 --concurrency 2", "exclude each other"),
    ("bench --metrics file:///etc/hosts --target 127.0.0.1:1", "is not a URL"),
    (f"bench --json --compare {FILE} {FILE}", "--json and --compare exclude each other"),
    ("bench --compare bytes.json bytes.json", f"bytes.json: 'utf-8' codec can't decode{WRITTEN}"),
    ("bench --compare zeros.json zeros.json", f"zeros.json: it is not valid JSON{WRITTEN}"),
    ("bench --compare deep.json deep.json", f"deep.json: it is not valid JSON{WRITTEN}"),
    ("bench --compare bare.json bare.json", f"has no attribute 'interrupted'{WRITTEN}"),
    ("bench --compare older.json older.json", f"its format is 'gradwire-bench/0'{WRITTEN}"),
    ("bench --rate nan", "'nan' is not a number above 0; see"),
    ("info --target ' , '", "error: --target is ' , '; give a server's"),
    ("evaluat", "gradwire: error: No such command 'evaluat'"),
]
FILES = {
    "empty": b"",
    "text": b"no array",
    "bytes": np.float32(1).tobytes(),
    "mine.py": b"def right(gradient, output_shape): ...\n",
    "exits.py": b"raise SystemExit(0)",
    "bytes.json": bytes(range(256)),
    "zeros.json": b"\0\1\2",
    "deep.json": b"[" * 100_000,
    "bare.json": b'{"format": "gradwire-bench/2"}',
    "older.json": b'{"format": "gradwire-bench/0"}',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with files of all kinds."""
    folder = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    np.save(folder / "g.npy", np.array([[4, 5, 6]], np.float32))
    np.save(folder / "bfloat16.npy", np.zeros((1, 3), ml_dtypes.bfloat16))
    np.save(folder / "integers.npy", np.zeros((1, 3), np.int32))
    return folder


@pytest.mark.parametrize(("command", "words"), WRONG)
def test_a_wrong_request_is_one_line_with_code_2_before_any_server_starts(
    command, words, folder, monkeypatch
):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    done = run_here(*shlex.split(command))
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("gradwire: error: ")
    assert done.stderr.count("\n") == 1
    assert all(each in done.stderr for each in words.split(" ... "))
    assert sorted(path for path in folder.iterdir() if path.name != "__pycache__") == before


def test_what_is_not_there_has_one_code_in_all_commands(nobody):
    for command in (
        f"evaluate {FILE} x.npy --op dml-resample-grad",
        "explain --op dml-resample-grad --input-shape 1",
        "compare --op dml-resample-grad --input-shape 1",
        "check math:sqrt --op dml-resample-grad",
    ):
        done = run_here(*shlex.split(command))
        assert (done.code, done.stdout) == (3, "")
        assert done.stderr.endswith("; did you mean 'dml_resample_grad'?\n")
    for command in ("info", "operators", "health"):
        done = run_here(command, "--target", nobody)
        assert (done.code, done.stderr) == (7, f"gradwire: error: {no_server(nobody)}\n")
