"""Benchmarks of gradwire; `python -m benchmarks` lists them.

Shared certificates and clusters, and the simulated device, are modules of tests/, which is put on
the path here.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

sys.path.append(str(ROOT / "tests"))
