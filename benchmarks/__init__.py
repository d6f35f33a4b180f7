"""Benchmarks of gradwire; `python -m benchmarks` lists them.

Shared certificates and clusters, and the simulated device, are modules of tests/, which this module
adds to the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

sys.path.append(str(ROOT / "tests"))
