"""Where compiled code is kept, and that no process compiles what another has compiled before."""

import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradwire_server.backends import cache_files
from support.kernels.numba_calls import compiled, needs_numba, run_program
from support.processes import environment

pytestmark = [needs_numba, pytest.mark.slow]

# A package that compiles in a moment stands in for the kernels, which take half a minute.
MULTIPLE = """
from numba import {compiler}, types
from small.parts import FACTOR

@{compiler}(types.int64(types.int64), cache=True)
def multiple(number):
    return FACTOR * number
"""
PACKAGE = {
    "__init__.py": "",
    "parts.py": "FACTOR = 2\n",
    "blocks.py": MULTIPLE.format(compiler="njit"),
    "jobs.py": MULTIPLE.format(compiler="cfunc"),
    "threads.py": "",
}

LOAD = """
import ctypes, sys
from numba.core import config
from gradwire_server.backends.numba_cpu import compilation

# Without root's capabilities a folder that must not be written to cannot be.
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
packages, folder = sys.argv[1:]
sys.path.insert(0, packages)
vars(compilation)["_PACKAGE"] = "small"
blocks, jobs, _ = compilation.load(folder)
assert config.CACHE_DIR == ""
answers = {blocks.multiple(21), jobs.multiple.ctypes(21)}
found = sum(blocks.multiple.stats.cache_hits.values()) + jobs.multiple.cache_hits
print(*answers, "of 2 found:", found)
"""

ALL = """
from support.kernels.numba_calls import compiled, compiled_functions
from gradwire_server.backends.numba_cpu import compilation

compiled(1)
callbacks = [one for one in compiled_functions() if type(one).__name__ == "CFunc"]
assert callbacks
assert all(one.cache_hits for one in callbacks)
blocks, _, threads = compilation.load("")
for one in (blocks.accumulate, threads.serve, threads.share, threads.end):
    assert not one.stats.cache_misses, one
    assert one.stats.cache_hits, one
"""


# Has numba imported, which takes longest, and forks processes off that load the package.
FORKS = """
import json, os, sys, tempfile
from gradwire_server.backends.numba_cpu import compilation

for line in sys.stdin:
    program, out, env, *arguments = json.loads(line)
    if not (child := os.fork()):
        os.environ.update(env)
        sys.argv[1:], tempfile.tempdir = arguments, None
        for number in (1, 2):
            os.dup2(os.open(f"{out}/{number}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        exec(program)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Loader:
    """Loads the package of a folder, each time in a process of its own.

    first  a folder that another process has filled
    """

    def __init__(self, packages, out):
        self.packages, self._out, self.first = packages, out, out / "a" / "b"
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(None),
        )

    def __call__(self, folder, *, logs="", **env):
        """Return what it says of its cache, after it logged this."""
        given = LOAD, self._out, env, self.packages, folder
        told = json.dumps(given, default=str)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(told, file=self.process.stdin, flush=True)
        code = self.process.stdout.readline()
        said, errors = ((self._out / name).read_text() for name in "12")
        assert code == "0\n", errors
        assert errors.startswith(logs) if logs else not errors
        return said.strip()

    def alone(self, folder, *, before="", **env):
        """Return what a process says and logs that imports everything, and does this before."""
        done = run_program(before + LOAD, self.packages, folder, env=env)
        return done.stdout.strip(), done.stderr


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    packages = tmp_path_factory.mktemp("packages")
    (packages / "small").mkdir()
    for name, text in PACKAGE.items():
        (packages / "small" / name).write_text(text)
    loader = Loader(packages, tmp_path_factory.mktemp("out"))
    with loader.process:
        assert loader(loader.first) == "42 of 2 found: 0"
        yield loader


@pytest.fixture
def filled(load, tmp_path):
    return shutil.copytree(load.first, tmp_path / "filled")


def _files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_kernels_themselves_are_found_by_a_second_process():
    compiled(1)
    done = run_program(ALL)
    assert done.returncode == 0, done.stderr


def test_what_was_compiled_from_other_code_is_not_used(load, filled):
    part = load.packages / "small" / "parts.py"
    # Longer: Python's own bytecode goes by size and whole seconds.
    part.write_text("FACTOR = 1 + 2\n")
    try:
        assert load(filled) == "63 of 2 found: 0"
    finally:
        part.write_text(PACKAGE["parts.py"])
    assert load(filled) == "42 of 2 found: 2"


def test_a_folder_that_cannot_be_written_to_is_used_as_it_is_and_nothing_left_elsewhere(
    load, filled, tmp_path
):
    place, scratch = tmp_path / "place", tmp_path / "scratch"
    scratch.mkdir()
    place.mkdir()
    files = _files(filled)
    for path in (place, filled, *filled.iterdir()):
        path.chmod(0o555)
    assert load(filled, TMPDIR=scratch) == "42 of 2 found: 2"
    says = "kernels cannot be cached: "
    assert load(place / "kept", logs=says, TMPDIR=scratch) == "42 of 2 found: 0"
    assert _files(filled) == files
    assert not list(scratch.iterdir())
    assert not list(load.packages.rglob("*.nb?"))


def _flipped(content, place):
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def test_a_damaged_file_is_replaced(load, filled):
    (path,) = _files(filled)
    whole = path.read_bytes()
    size = len(whole)
    places = (0, size * 3 // 5, size - 1)  # at its start, amid code, in its digest
    damaged = [b"", whole[: size // 2], *(_flipped(whole, place) for place in places)]
    entries = pickle.loads(cache_files.read(path) or b"")  # noqa: S301 - our own file
    no_code = pickle.dumps(dict.fromkeys(entries, b"no code"))
    again = [no_code + cache_files.digest(no_code)]
    for logs, contents in (("damaged: ", damaged), ("kernels are compiled again", again)):
        for content in contents:
            path.write_bytes(content)
            assert load(filled, logs=logs) == "42 of 2 found: 0"
            assert load(filled) == "42 of 2 found: 2"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86-64")
def test_code_of_another_processor_is_kept_and_not_used(load, filled):
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    for found in (0, 2):
        assert load.alone(filled, **other) == (f"42 of 2 found: {found}", "")
    assert load(filled) == "42 of 2 found: 2"


def test_a_full_disk_costs_what_is_kept_and_nothing_else(load, tmp_path):
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    folder = tmp_path / "kept"
    said, logged = load.alone(folder, before=full)
    assert said == "42 of 2 found: 0"
    assert logged.startswith("kernels cannot be cached")
    for found in (0, 2):
        assert load(folder) == f"42 of 2 found: {found}"


def test_what_was_compiled_from_code_long_unused_is_removed(load, filled):
    (own,) = filled.iterdir()
    long_ago, lately = (time.time() - days * 24 * 3600 for days in (31, 29))
    others = {"0123456789abcdef": long_ago, "0123456789abcde0": lately, "somebody's": long_ago}
    for name, used in others.items():
        (filled / name / "numba_cpu_1").mkdir(parents=True)
        (filled / name / "numba_cpu_1" / "a.nbc").write_bytes(b"1")
        os.utime(filled / name, (used, used))
    (filled / "fedcba9876543210").symlink_to(filled / "somebody's")
    os.utime(own, (long_ago, long_ago))
    assert load(filled) == "42 of 2 found: 2"
    left = {path.name for path in filled.iterdir()}
    assert left == {own.name, "fedcba9876543210", "0123456789abcde0", "somebody's"}
    # What is used stays, whenever it was compiled.
    assert own.stat().st_mtime > lately


def test_processes_that_start_at_once_do_not_disturb_each_other(load, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(load.alone, [tmp_path / "kept"] * 3))
    assert all(said.startswith("42 ") and not logged for said, logged in answers)
    assert load(tmp_path / "kept") == "42 of 2 found: 2"
