"""Wrong requests to every command: one line that says what would do, and code 2 at once."""

from __future__ import annotations

import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from support.command_line import run_here

FILE = shlex.quote(__file__)
DML = "--op dml_resample_grad --attr interpolation_mode=nearest"
EVALUATE = f"evaluate g.npy y.npy {DML}"
SHAPED = f"{EVALUATE} --output-shape 2,2"
NEAREST = "--op interpolate_backward --attr mode=nearest --attr data_format=NCX"
SHAPES = "--input-shape 1,1,2 --output-shape 1,1,4"
UNSIZED = (
    "explain --op interpolate_backward --attr mode=linear --attr data_format=NCX "
    "--input-shape 1,1,4"
)
EXPLAIN = f"{UNSIZED} --output-shape 1,1,2"
CHECK = f"{NEAREST} --attr coordinate_transformation_mode=align_corners"
DTYPES = {"integers": "int32", "complex": "complex64", "big-endian": ">i8"}
WRITTEN = " ... give a file that `gradwire bench --output` has written"
MODES = "give 'nearest_neighbor' (also 'nearest') or 'linear'"

# Commands, with what they say.
WRONG: list[tuple[str, str]] = [
    (EVALUATE, "--output-shape is missing"),
    (f"{EVALUATE} --output-shape 2,-1", "'2,-1' is not a shape"),
    (f"{EVALUATE} --output-shape 2,99999999999999999999", "larger than files can be"),
    (f"{EVALUATE} --output-shape 2,{2**60}", "larger than files can be"),
    (f"{SHAPED} --timeout nan", "'nan' is not a number"),
    (f"{SHAPED} --attr scales", "'scales' has no '='"),
    (f"{SHAPED} --attr =3", "'=3' has no name before '='"),
    (f"{SHAPED} --attr scales=1,1 --attr scales=1,1", "scales is given twice"),
    (f"{SHAPED} --attr scale=1", "did you mean 'scales'?"),
    (f"{EVALUATE} --attr scale=1", "--attr scale: is not an attribute"),
    (f"{SHAPED} --attr scales=1,x", "--attr scales: is '1,x'; give"),
    (f"{SHAPED} --attr scales=1,nan", "--attr scales[1]: is nan"),
    (
        "evaluate g.npy y.npy --op dml_resample_grad --output-shape 2,2",
        f"--attr interpolation_mode: is missing; {MODES}",
    ),
    (SHAPED.replace("=nearest", "=cubic"), MODES),
    (f"{SHAPED} --dtype bfloat16", "--dtype bfloat16: "),
    (f"{SHAPED} --tls-ca {FILE}", "--tls-ca needs --target"),
    (f"{SHAPED} --tls-key {FILE}", "needs --tls-certificate"),
    (f"{SHAPED} --tls-certificate {FILE} --tls-key {FILE}", "--tls-key needs --tls;"),
    (f"{SHAPED} --tls", "--tls needs --target"),
    (f"{EVALUATE} --output-shap 2,2", "see gradwire evaluate --help"),
    (f"{SHAPED} --split", "--target"),
    (SHAPED.replace("y.npy", "no/y.npy"), "is in a folder that does not exist"),
    (SHAPED.replace("y.npy", "-"), "'-' does not stand for standard output"),
    *(
        (SHAPED.replace("g.npy", name), f"{name} is not a .npy file of numbers")
        for name in ("empty", "text", "bytes")
    ),
    (SHAPED.replace("g.npy", "bfloat16.npy"), "give --dtype bfloat16"),
    *(
        (
            SHAPED.replace("g.npy", f"{name}.npy"),
            f"{name}.npy holds {dtype}; give one of float32, float16, bfloat16, float64\n",
        )
        for name, dtype in DTYPES.items()
    ),
    (f"compare {NEAREST} {SHAPES}", "--op: give it twice, or once with --against"),
    (f"compare {NEAREST} {NEAREST} {NEAREST} {SHAPES}", "--op: give it twice"),
    (f"compare {NEAREST} {DML}", "give one of --input and --input-shape"),
    (f"compare --attr mode=nearest {NEAREST} {NEAREST} {SHAPES}", "stands before any --op"),
    (f"compare {NEAREST} --against {FILE} {SHAPES}", "give --input too"),
    (f"compare {NEAREST} {DML} --input {FILE}", "is not a .npy file of numbers"),
    (f"compare {NEAREST} {NEAREST} {SHAPES} --dtype int8", "'int8' is not one of"),
    (f"{EXPLAIN} --axis 3", "--axis: 3 is not one of the axes 0 to 2"),
    (f"{EXPLAIN} --output x.jpg", "end it in .png or .svg or .pdf"),
    (f"{EXPLAIN} --output no/x.png", "is in a folder that does not exist"),
    (f"{EXPLAIN} --attr sizes=5", "sizes"),
    (f"{EXPLAIN} --output-shape 1,2,2", "the channel axis is not resampled"),
    (f"{EXPLAIN} --input-shape x", "'x' is not a shape"),
    (UNSIZED, "the attributes of interpolate_backward do not determine its sizes"),
    (f"check right {CHECK}", "'right' is not a function; give module:function"),
    (
        f"check no_such_module:f {CHECK}",
        "no_such_module cannot be imported: ModuleNotFoundError",
    ),
    (
        f"check no_such_file.py:f {CHECK}",
        "there is no file no_such_file.py; give the name of one",
    ),
    (f"check mine.py:wrong {CHECK}", "wrong is nothing; a function is needed"),
    (f"check mine.py:LAST {CHECK}", "LAST is list; a function is needed"),
    ("check mine.py:right", "Missing option '--op'"),
    (f"check mine.py:right {CHECK} --values odd", "'odd' is not one of"),
    (f"check exits.py:f {CHECK}", "exits.py cannot be imported: SystemExit: 0"),
    ("bench --rate 5 --concurrency 2", "exclude each other"),
    ("bench --metrics http://127.0.0.1:1/metrics", "--metrics needs --target"),
    ("bench --metrics file:///etc/hosts --target 127.0.0.1:1", "is not a URL"),
    ("bench --scenario huge", "huge"),
    ("bench --duration 0", "--duration"),
    ("bench --report missing/report.html", "is in a folder that does not exist"),
    (f"bench --json --compare {FILE} {FILE}", "--json and --compare exclude each other"),
    ("bench --compare bytes.json bytes.json", f"bytes.json: it is not text{WRITTEN}"),
    ("bench --compare zeros.json zeros.json", f"zeros.json: it is not valid JSON{WRITTEN}"),
    ("bench --compare empty.json empty.json", f"empty.json: its format is None{WRITTEN}"),
    ("bench --compare bare.json bare.json", f"has no attribute 'when'{WRITTEN}"),
    ("bench --compare older.json older.json", f"its format is 'gradwire-bench/0'{WRITTEN}"),
    ("bench --compare missing.json missing.json", "does not exist"),
    ("demo --output missing/demo.png", "missing/demo.png"),
    ("health --target 127.0.0.1:1 --wait nan", "'nan' is not a number above 0"),
    ("info --target ' , '", "'--target' (env var: 'GRADWIRE_TARGET'): is ' , '; give a server's"),
    ("evaluat", "gradwire: error: No such command 'evaluat'"),
]
FILES = {
    "empty": b"",
    "text": b"no array",
    "bytes": np.float32(1).tobytes(),
    "mine.py": b"LAST = []\ndef right(gradient, output_shape): ...\n",
    "exits.py": b"raise SystemExit(0)",
    "bytes.json": bytes(range(256)),
    "zeros.json": b"\0\1\2",
    "empty.json": b"{}",
    "bare.json": b'{"format": "gradwire-bench/2"}',
    "older.json": b'{"format": "gradwire-bench/0"}',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of all kinds."""
    folder = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    np.save(folder / "g.npy", np.array([[4, 5, 6]], np.float32))
    np.save(folder / "bfloat16.npy", np.zeros((1, 3), ml_dtypes.bfloat16))
    for name, dtype in DTYPES.items():
        np.save(folder / f"{name}.npy", np.zeros((1, 3), dtype))
    return folder


@pytest.mark.parametrize(("command", "words"), WRONG)
def test_a_wrong_request_is_one_line_with_code_2_before_any_server_starts(
    command: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    done = run_here(*shlex.split(command))
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("gradwire: error: ")
    assert done.stderr.count("\n") == 1
    assert all(each in done.stderr for each in words.split(" ... "))
    assert sorted(path for path in folder.iterdir() if path.name != "__pycache__") == before


@pytest.mark.parametrize(
    "command",
    [
        f"evaluate {FILE} x.npy --op dml-resample-grad",
        "explain --op dml-resample-grad --input-shape 1",
        "compare --op dml-resample-grad --input-shape 1",
        "check math:sqrt --op dml-resample-grad",
    ],
)
def test_an_operator_that_is_not_known_has_one_code_in_all_commands(command: str) -> None:
    done = run_here(*shlex.split(command))
    assert (done.code, done.stdout) == (3, "")
    assert done.stderr.startswith(
        "gradwire: error: --op: 'dml-resample-grad' is not an operator; give one of "
    )
    assert done.stderr.endswith("; did you mean dml_resample_grad?\n")
