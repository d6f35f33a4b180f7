"""Tools that tests of the schema run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def buf() -> str:
    """Return where buf is; skip the test where there is none."""
    beside = shutil.which("buf", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("buf")
    if found is None:
        pytest.skip("buf is neither beside the interpreter nor on PATH")
    return found
