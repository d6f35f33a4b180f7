"""Where compiled code is kept, and that no process compiles what another has compiled before."""

from __future__ import annotations

import os
import pickle
import platform
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from gradwire_server.backends import cache_files
from support.kernels.numba_calls import compiled, needs_numba, run_program

pytestmark = needs_numba

# A package that compiles in a moment stands in for the kernels, which take half a minute.
PACKAGE = {
    "__init__.py": "",
    "parts.py": "FACTOR = 2\n",
    "blocks.py": """
from numba import njit, types
from small.parts import FACTOR

@njit(types.int64(types.int64), cache=True)
def multiple(number):
    return FACTOR * number
""",
    "jobs.py": """
from numba import cfunc, types
from small.parts import FACTOR

@cfunc(types.int64(types.int64), cache=True)
def multiple(number):
    return FACTOR * number
""",
    "threads.py": "",
}

LOAD = """
import ctypes
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
from backends import assembly
from support.kernels.numba_calls import compiled
from gradwire_server.backends.numba_cpu import compilation

compiled(1)
callbacks = [one for one in assembly.compiled_functions() if type(one).__name__ == "CFunc"]
assert callbacks
assert all(one.cache_hits for one in callbacks)
blocks, _, threads = compilation.load("")
for one in (blocks.accumulate, threads.serve, threads.share, threads.end):
    assert not one.stats.cache_misses, one
    assert one.stats.cache_hits, one
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    (folder / "small").mkdir()
    for name, text in PACKAGE.items():
        (folder / "small" / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def first(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "a" / "b"
    assert _load(packages, folder) == "42 of 2 found: 0"
    return folder


@pytest.fixture
def filled(first: Path, tmp_path: Path) -> Path:
    return shutil.copytree(first, tmp_path / "filled")


def _load(
    packages: Path, folder: Path | str, *, logs: str = "", before: str = "", **env: object
) -> str:
    """Load the package in a process, which logs this, and return what it says of its cache.

    before  what the process does first
    """
    variables = {name: str(one) for name, one in env.items()}
    done = run_program(before + LOAD, packages, folder, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(logs) if logs else not done.stderr
    return done.stdout.strip()


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_compiles_nothing(packages: Path, filled: Path) -> None:
    files = _files(filled)
    assert files
    assert _load(packages, filled) == "42 of 2 found: 2"
    assert _files(filled) == files


def test_the_kernels_themselves_are_found_by_a_second_process() -> None:
    compiled(1)
    done = run_program(ALL)
    assert done.returncode == 0, done.stderr


def test_the_default_folder_is_in_the_users_cache(packages: Path, tmp_path: Path) -> None:
    _load(packages, "", XDG_CACHE_HOME=tmp_path / "xdg")
    assert _files(tmp_path / "xdg" / "gradwire" / "kernels")
    _load(packages, "", XDG_CACHE_HOME="", HOME=tmp_path / "home")
    assert _files(tmp_path / "home" / ".cache" / "gradwire" / "kernels")


def test_what_was_compiled_from_other_code_is_not_used(packages: Path, filled: Path) -> None:
    part = packages / "small" / "parts.py"
    # Longer: Python's own bytecode goes by size and whole seconds.
    part.write_text("FACTOR = 1 + 2\n")
    try:
        assert _load(packages, filled) == "63 of 2 found: 0"
    finally:
        part.write_text(PACKAGE["parts.py"])
    assert _load(packages, filled) == "42 of 2 found: 2"


def test_a_folder_that_cannot_be_written_to_is_used_as_it_is(
    packages: Path, filled: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    files = _files(filled)
    folders = [filled, *(path for path in filled.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        assert _load(packages, filled, TMPDIR=scratch) == "42 of 2 found: 2"
    finally:
        for path in folders:
            path.chmod(0o755)
    assert _files(filled) == files
    assert not list(scratch.iterdir())
    assert not list(packages.rglob("*.nb?"))


def test_without_a_folder_a_process_compiles_and_leaves_nothing(
    packages: Path, tmp_path: Path
) -> None:
    place, scratch = tmp_path / "place", tmp_path / "scratch"
    scratch.mkdir()
    place.mkdir(mode=0o555)
    says = "kernels cannot be cached: "
    assert _load(packages, place / "kept", logs=says, TMPDIR=scratch) == "42 of 2 found: 0"
    assert not list(scratch.iterdir())
    assert not list(packages.rglob("*.nb?"))


def _cut(content: bytes, *, left: float) -> bytes:
    return content[: int(len(content) * left)]


def _flipped(content: bytes, *, place: float) -> bytes:
    at = int((len(content) - 1) * place)
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(partial(_cut, left=0), id="empty"),
        pytest.param(partial(_cut, left=0.5), id="cut"),
        pytest.param(partial(_flipped, place=0), id="flipped at its start"),
        pytest.param(partial(_flipped, place=0.6), id="flipped amid code"),
        pytest.param(partial(_flipped, place=1), id="flipped in its digest"),
    ],
)
def test_a_damaged_file_is_replaced(
    packages: Path, filled: Path, damage: Callable[[bytes], bytes]
) -> None:
    (path,) = _files(filled)
    path.write_bytes(damage(path.read_bytes()))
    assert _load(packages, filled, logs="damaged: ") == "42 of 2 found: 0"
    assert _load(packages, filled) == "42 of 2 found: 2"


def test_code_that_does_not_load_is_compiled_again(packages: Path, filled: Path) -> None:
    (path,) = _files(filled)
    entries = pickle.loads(cache_files.read(path) or b"")  # noqa: S301 - our own file
    cache_files.write(path, pickle.dumps(dict.fromkeys(entries, b"no code")))
    assert _load(packages, filled, logs="kernels are compiled again") == "42 of 2 found: 0"
    assert _load(packages, filled) == "42 of 2 found: 2"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86-64")
def test_code_of_another_processor_is_kept_and_not_used(packages: Path, filled: Path) -> None:
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert _load(packages, filled, **other) == "42 of 2 found: 0"
    for env in (other, {}):
        assert _load(packages, filled, **env) == "42 of 2 found: 2"


@pytest.mark.slow
def test_a_full_disk_costs_what_is_kept_and_nothing_else(packages: Path, tmp_path: Path) -> None:
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    folder = tmp_path / "kept"
    logged = "kernels cannot be cached"
    assert _load(packages, folder, logs=logged, before=full) == "42 of 2 found: 0"
    assert _load(packages, folder) == "42 of 2 found: 0"
    assert _load(packages, folder) == "42 of 2 found: 2"


def test_what_was_compiled_from_code_long_unused_is_removed(packages: Path, filled: Path) -> None:
    (own,) = filled.iterdir()
    long_ago = time.time() - 31 * 24 * 3600
    lately = time.time() - 29 * 24 * 3600
    others = {
        "0123456789abcdef": long_ago,
        "0123456789abcde0": lately,
        "of somebody else": long_ago,
    }
    for name, used in others.items():
        (filled / name / "numba_cpu_1").mkdir(parents=True)
        (filled / name / "numba_cpu_1" / "a.nbc").write_bytes(b"1")
        os.utime(filled / name, (used, used))
    (filled / "fedcba9876543210").symlink_to(filled / "of somebody else")
    os.utime(own, (long_ago, long_ago))
    assert _load(packages, filled) == "42 of 2 found: 2"
    left = {path.name for path in filled.iterdir()}
    assert left == {own.name, "fedcba9876543210", "0123456789abcde0", "of somebody else"}
    # What is used stays, whenever it was compiled.
    assert own.stat().st_mtime > lately


@pytest.mark.slow
def test_processes_that_start_at_once_do_not_disturb_each_other(
    packages: Path, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(partial(_load, packages), [tmp_path / "kept"] * 3))
    assert all(answer.startswith("42 ") for answer in answers)
    assert _load(packages, tmp_path / "kept") == "42 of 2 found: 2"


def test_a_log_line_tells_that_kernels_are_compiled(packages: Path, tmp_path: Path) -> None:
    program = (
        f"from gradwire_server.observability import logs; logs.configure('text', 'debug')\n{LOAD}"
    )
    first, second = (run_program(program, packages, tmp_path).stderr for _ in range(2))
    events = [line.partition(" ")[2] for line in first.splitlines()]
    assert events == [
        "info    compiling kernels, first start only, about 30 s",
        "info    kernels are ready compiled=2",
    ]
    assert not second
