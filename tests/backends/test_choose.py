"""The choice of a backend."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from gradwire import Client, ops
from support.kernels.numba_calls import needs_numba
from support.processes import run_command, running_command
from support.raw_calls import wait_until

WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
from gradwire_server import backends
try:
    backends.choose("numba_cpu")
except ValueError as error:
    assert 'pip install "gradwire[cpu]"' in str(error)
    print(*backends.choose("auto"))
"""


def test_auto_is_numpy_where_numba_is_missing_and_a_name_is_never_replaced():
    told = subprocess.check_output([sys.executable, "-c", WITHOUT_NUMBA], text=True)  # noqa: S603
    assert " numpy_cpu, since numba_cpu cannot run here: " in told


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a driver")
def test_cuda_where_something_is_missing_ends_the_server_with_one_line():
    why = "there is no NVIDIA driver"
    if not find_spec("cupy"):
        why = 'CuPy is not installed; install it with pip install "gradwire[cuda'
    done = run_command("--backend", "cuda", "--address", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f'Error: backend "cuda" cannot run here: {why}')


# A name that another version of numba may lack, the error that follows, and workers.
BREAKS = {
    "import": ("del numba.core.caching.IndexDataCacheFile", "AttributeError: ", 2),
    "warm-up": ("del numba.core.config.LOOP_VECTORIZE", "KeyError: 'LOOP_VECTORIZE'", 1),
}


@needs_numba
@pytest.mark.parametrize("broken", BREAKS)
def test_another_numba_that_fails_is_replaced_by_numpy_unless_it_was_asked_for(tmp_path, broken):
    change, why, workers = BREAKS[broken]
    broken_numba = f"import numba.core.caching, numba.core.config\n{change}\n"
    (tmp_path / "sitecustomize.py").write_text(broken_numba)
    env = {"PYTHONPATH": str(tmp_path)}
    flags = ("--backend", "auto", "--workers", str(workers))
    with running_command(*flags, log=tmp_path / "log", env=env) as command:
        warning = f'warning slower backend (worker=\\d )?backend=numpy_cpu why="{re.escape(why)}'
        wait_until(lambda: len(re.findall(warning, command.log)) == workers)
        with Client(command.address) as client:
            client.wait_ready()
            info = client.server_info()
            evaluated = client.evaluate(
                ops.JaxResize(method="nearest", shape=(6,)), np.ones(3, np.float32)
            )
        assert evaluated.tolist() == [1] * 6
        assert info.backend == "numpy_cpu"
        assert f"since numba_cpu cannot run here: {why}" in info.backend_reason
    done = run_command("--backend", "numba_cpu", "--address", "127.0.0.1:0", env=env)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f'Error: backend "numba_cpu" cannot run here: {why}')
    assert "Traceback" not in done.stderr
