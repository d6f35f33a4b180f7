"""compute-sanitizer finds no illegal access and no race in any kernel, on rows of a few numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from support.kernels import cuda_table, gpu_rows

TESTS = Path(__file__).parents[1]
# What the tool ends with where it found something.
FOUND = 86
# Libraries ask the driver for what it need not have; that is no error of a kernel.
QUIET = {"memcheck": ["--report-api-errors=no"], "racecheck": list[str]()}
PATIENCE_S = 240


def sanitizer() -> str | None:
    """Return the tool, of the system or of the package nvidia-cuda-sanitizer-api."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    places = ["*/compute-sanitizer/compute-sanitizer", "*/bin/compute-sanitizer"]
    kept = [str(one) for place in places for one in sorted(packages.glob(place))]
    return next(iter([*filter(None, [shutil.which("compute-sanitizer")]), *kept]), None)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_it_finds_nothing_and_the_bits_are_those_of_numpy(cuda: Cuda, tool: str) -> None:
    del cuda  # only that there is a device
    found = sanitizer()
    if found is None:
        pytest.skip(
            "compute-sanitizer is missing; CUDA's toolkit or pip's cuda-toolkit[sanitizer] has it"
        )
    flags = [f"--tool={tool}", f"--error-exitcode={FOUND}", *QUIET[tool]]
    done = subprocess.run(  # noqa: S603 - NVIDIA's tool on our own program
        [found, *flags, sys.executable, "-m", gpu_rows.__name__],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    said = done.stdout + done.stderr
    if re.search(r"Device not supported|not supported on this (system|platform)", said):
        pytest.skip(f"compute-sanitizer cannot watch this device: {' '.join(said.split())[:300]}")
    assert done.returncode == 0, said[-4000:]
    assert re.search(r"(ERROR|RACECHECK) SUMMARY: 0 ", said), said[-4000:]
    assert cuda_table.digest(NumpyCpu(), gpu_rows.few_rows()) in done.stdout.split()
