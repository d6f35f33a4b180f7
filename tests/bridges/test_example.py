"""What docs/bridges.md shows runs, and the example that trains does what its text says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import serving

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "unet.py"


def test_two_runs_of_the_example_have_the_same_bits():
    pytest.importorskip("torch", reason="bridges to PyTorch where it is installed")
    with serving() as server:
        run = subprocess.run(  # noqa: S603
            [sys.executable, str(EXAMPLE), "--target", server.address, "--steps", "12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    first, second, last = run.stdout.splitlines()
    assert first == second
    assert last == "both runs have the same bits"


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_what_the_page_shows_runs(framework):
    pytest.importorskip(framework, reason=f"bridges to {framework} where it is installed")
    page = (ROOT / "docs" / "bridges.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shown,) = (block for block in found if f"gradwire.{framework}\n" in block)
    names = {}
    with serving() as server:
        exec(compile(shown.replace("127.0.0.1:50051", server.address), framework, "exec"), names)  # noqa: S102
        names["client"].close()
    if framework == "torch":
        assert names["y"].shape == names["z"].shape == (1, 3, 16, 16)
    else:
        assert names["gradient"].shape == (1, 8, 8, 3)
