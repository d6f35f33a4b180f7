"""The choice of a backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire import Client
from gradwire_server import backends
from support.kernels.cuda_backends import needs_cuda_packages, needs_no_cupy
from support.kernels.numba_calls import needs_numba
from support.processes import run_command, running_command
from support.raw_calls import RawClient, wait_until
from support.scraping import scrape


@pytest.mark.parametrize(
    "name", ["auto", "numpy_cpu", pytest.param("numba_cpu", marks=needs_numba)]
)
def test_a_choice_comes_with_its_name_and_reason(name: str) -> None:
    backend, reason = backends.choose(name)
    assert backend.name in reason
    assert name in {"auto", backend.name}


@needs_numba
def test_auto_is_the_compiled_backend_where_there_is_numba() -> None:
    backend, reason = backends.choose("auto")
    assert backend.name == "numba_cpu"
    assert reason.startswith("numba_cpu is the fastest backend for the CPU; ")
    assert (
        "not cuda: CuPy is not installed" in reason or "cuda is chosen by its name only" in reason
    )


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match='is "abacus"; give "auto", "cuda", "numba_cpu" or "numpy_cpu"'
    ):
        backends.choose("abacus")


def _chosen(name: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Choose a backend in a process of its own."""
    program = (
        f"import sys\n{before}\nfrom gradwire_server import backends\n"
        f"backend, reason = backends.choose({name!r})\nprint(backend.name, reason)\n"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(  # noqa: S603 - our own program
        command, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


_NO_NUMBA = "sys.modules['numba'] = sys.modules['llvmlite'] = None"


@pytest.mark.parametrize(
    ("before", "env"),
    [(_NO_NUMBA, {}), ("", {"NUMBA_DISABLE_JIT": "1"})],
    ids=["missing", "told to compile nothing"],
)
def test_auto_is_numpy_where_numba_cannot_be_used_and_says_so(
    before: str, env: dict[str, str]
) -> None:
    answer = _chosen("auto", before, **env)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("numpy_cpu numpy_cpu, since numba_cpu cannot run here: ")


def test_the_compiled_backend_asked_for_by_name_is_never_replaced_by_another() -> None:
    answer = _chosen("numba_cpu", _NO_NUMBA)
    assert answer.returncode == 1
    assert 'pip install "gradwire[cpu]"' in answer.stderr


def _server_without_device(*flags: str) -> str:
    done = run_command("--backend", "cuda", "--address", "127.0.0.1:0", *flags)
    assert done.returncode == 1
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith('Error: backend "cuda" cannot run here: ')
    return line


@needs_no_cupy
@pytest.mark.parametrize("flags", [(), ("--compile-only",)])
def test_cuda_without_cupy_ends_the_server_with_what_to_install(flags: tuple[str, ...]) -> None:
    assert 'CuPy is not installed; install it with pip install "gradwire[cuda' in (
        _server_without_device(*flags)
    )


@needs_cuda_packages
@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a driver")
def test_cuda_without_a_driver_ends_the_server_with_one_line() -> None:
    assert "there is no NVIDIA driver" in _server_without_device()


# A name that another version of numba may lack, and the error that follows.
BREAKS = {
    "import": ("del numba.core.caching.IndexDataCacheFile", "AttributeError: "),
    "warm-up": ("del numba.core.config.LOOP_VECTORIZE", "KeyError: 'LOOP_VECTORIZE'"),
}


@pytest.fixture(params=BREAKS)
def other_numba(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, str], str]:
    """Return the environment of processes whose numba lacks something, and how that shows."""
    change, why = BREAKS[request.param]
    (tmp_path / "sitecustomize.py").write_text(
        f"import numba.core.caching, numba.core.config\n{change}\n"
    )
    return {"PYTHONPATH": str(tmp_path)}, why


@needs_numba
@pytest.mark.parametrize("workers", ["1", "2"])
def test_auto_is_numpy_where_another_numba_fails(
    tmp_path: Path, other_numba: tuple[dict[str, str], str], workers: str
) -> None:
    env, why = other_numba
    flags = ("--backend", "auto", "--workers", workers, "--http-port", "0")
    with running_command(*flags, log=tmp_path / "log", env=env) as command:
        warning = f'warning slower backend (worker=\\d )?backend=numpy_cpu why="{re.escape(why)}'
        wait_until(lambda: len(re.findall(warning, command.log)) == int(workers))
        with Client(command.address) as client:
            client.wait_ready()
            info = client.server_info()
        assert info.backend == "numpy_cpu"
        assert f"since numba_cpu cannot run here: {why}" in info.backend_reason
        with RawClient(command.address) as raw:
            raw.check_alive()
        (address,) = re.findall(r" http address=(\S+)", command.log)
        seen = scrape(str(address))
        assert seen.labels("gradwire_build_info", "backend") == {"numpy_cpu"}


@needs_numba
def test_another_numba_that_was_asked_for_fails_with_the_reason(
    other_numba: tuple[dict[str, str], str],
) -> None:
    env, why = other_numba
    flags = ("--backend", "numba_cpu", "--address", "127.0.0.1:0")
    done = run_command(*flags, env=env)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f'Error: backend "numba_cpu" cannot run here: {why}')
    assert "Traceback" not in done.stderr
