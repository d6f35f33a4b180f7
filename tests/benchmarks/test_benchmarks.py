"""Benchmarks by their names, the judgement of `compare`, and the GPU's on a simulated device."""

import json
import math
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.compare.judgement import judge
from benchmarks.compute.cases import DTYPES
from benchmarks.gpu import report
from benchmarks.gpu.machines import SimulatedMachine
from benchmarks.gpu.run import GpuPace, Run
from support.kernels.cuda_table import needs_simulator

ROOT = Path(__file__).parents[2]


def test_every_listed_name_and_every_command_of_a_page_exists():
    command = [sys.executable, "-m", "benchmarks"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)  # noqa: S603 - our own program
    for name, (module, _) in NAMES.items():
        assert f"  {name} " in listed
        assert find_spec(f"benchmarks.{module}") is not None
    pages = [ROOT / "Makefile", *(ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert set() < set(re.findall(r"python -m benchmarks ([a-z-]+)", text)) <= NAMES.keys()


def test_a_row_is_worse_by_a_tenth_in_nine_of_ten_pairs():
    for better, ours, worse in (
        ("lower", [1.2] * 10, True),
        ("higher", [0.8] * 10, True),
        ("lower", [1.09] * 10, False),
        ("higher", [0.92] * 10, False),
        ("lower", [0.9] + [1.3] * 9, True),
        ("lower", [0.9] * 2 + [1.3] * 8, False),
    ):
        assert judge(ours, [1.0] * 10, better=better).worse is worse, (better, ours)


@pytest.mark.slow
@needs_simulator
@pytest.mark.parametrize("name", ["linear 2-D x2", "cubic 2-D x2", "nearest 3-D x2"])
def test_all_of_it_runs_on_a_simulated_device(name, tmp_path):
    machine = SimulatedMachine()
    run = Run(machine, machine.stream(), GpuPace(rounds=2, warm=1), seconds=300, case=name)
    records = list(run.kernels())
    assert len(records) == 3 * 2
    for record in records:
        assert {"ours", "copy"} <= record.seconds.keys()
        numbers = math.prod(record.src) + math.prod(record.dst)
        assert record.nbytes == DTYPES[record.dtype].itemsize * numbers
    if name == "linear 2-D x2":
        run.from_host_memory()
        assert {cost.way for cost in run.costs} == {"apply", "request"}
    assert not run.broken
    run.write(tmp_path / "gpu.json", {})
    assert report.load(json.loads((tmp_path / "gpu.json").read_text())) == records
