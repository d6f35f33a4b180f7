"""perf_analyzer, the binary of an old tritonclient's wheel, runs to its report."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.inference_calls import MODEL
from support.servers import serving

PROGRAM = Path(os.environ.get("PERF_ANALYZER", "/nowhere"))


@pytest.mark.skipif(not PROGRAM.exists(), reason="the variable PERF_ANALYZER names no program")
@pytest.mark.parametrize("memory", ["none", "system"])
@pytest.mark.parametrize("calls", [(), ("--async",), ("--async", "--streaming")], ids=str)
def test_perf_analyzer_reports(memory, calls):
    with serving(model=MODEL, open_inference_memory="*") as server:
        arguments = [
            *(str(PROGRAM), "-m", "up", "-u", server.address, "-i", "grpc", *calls),
            *("--concurrency-range", "1", "-r", "3", "-s", "10000"),
            *("--measurement-mode", "count_windows", "--measurement-request-count", "50"),
            *(f"--shared-memory={memory}", "--output-shared-memory-size=12288"),
        ]
        # It asks for as much memory as there is.
        limited = ["bash", "-c", f'ulimit -v {4 << 20}; exec "$@"', "bash", *arguments]
        done = subprocess.run(  # noqa: S603 - the program of the variable
            limited, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"Concurrency: 1, throughput: [\d.]*[1-9]", done.stdout), done.stdout
        assert re.search(r"Inference count: [1-9]", done.stdout)
