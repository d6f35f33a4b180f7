"""Where compiled code is kept, and that no process compiles what another has compiled before."""

import os
import pickle
import platform
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradwire_server.backends import cache_files
from support.kernels.numba_calls import needs_numba, run_program

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


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    made = tmp_path_factory.mktemp("packages")
    (made / "small").mkdir()
    for name, text in PACKAGE.items():
        (made / "small" / name).write_text(text)
    return made


@pytest.fixture(scope="module")
def load(packages):
    """Return what loads the package of a folder in a new process, and tells what that says."""

    def load_it(folder, *, logs="", before="", **env):
        done = run_program(before + LOAD, packages, folder, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(logs) if logs else not done.stderr
        return done.stdout.strip()

    return load_it


@pytest.fixture(scope="module")
def first(load, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "a" / "b"
    assert load(folder) == "42 of 2 found: 0"
    return folder


@pytest.fixture
def filled(first, tmp_path):
    return shutil.copytree(first, tmp_path / "filled")


def _files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_what_was_compiled_from_other_code_is_not_used(load, packages, filled):
    part = packages / "small" / "parts.py"
    # Longer: Python's own bytecode goes by size and whole seconds.
    part.write_text("FACTOR = 1 + 2\n")
    try:
        assert load(filled) == "63 of 2 found: 0"
    finally:
        part.write_text(PACKAGE["parts.py"])
    assert load(filled) == "42 of 2 found: 2"


def test_a_folder_that_cannot_be_written_to_is_used_as_it_is_and_nothing_left_elsewhere(
    load, packages, filled, tmp_path
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
    assert not list(packages.rglob("*.nb?"))


def test_a_damaged_file_is_replaced(load, filled):
    (path,) = _files(filled)
    whole = path.read_bytes()
    places = (0, len(whole) * 3 // 5, len(whole) - 1)  # at its start, amid code, in its digest
    damaged = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in places]
    damaged += [b"", whole[: len(whole) // 2]]
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
        assert load(filled, **other) == f"42 of 2 found: {found}"
    assert load(filled) == "42 of 2 found: 2"


def test_a_full_disk_costs_what_is_kept_and_nothing_else(load, tmp_path):
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    folder = tmp_path / "kept"
    assert load(folder, logs="kernels cannot be cached", before=full) == "42 of 2 found: 0"
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
    assert own.stat().st_mtime > lately  # what is used stays, whenever it was compiled


def test_processes_that_start_at_once_do_not_disturb_each_other(load, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(load, [tmp_path / "kept"] * 3))
    assert {said.partition(" ")[0] for said in answers} == {"42"}
    assert load(tmp_path / "kept") == "42 of 2 found: 2"
