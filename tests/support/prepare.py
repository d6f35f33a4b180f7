"""Compile what tests share, so that none compiles it within its time, and no two do so at once.

    python tests/support/prepare.py    needs nothing; what cannot be compiled here is left out

That is the kernels of `numba_cpu`, and those of CUDA for the simulated device. Both are kept.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

from cudasim.compiler import why_not
from support.kernels import cuda_device

_KERNELS = ("-m", "gradwire_server", "--compile-only", "--backend", "numba_cpu")


def main() -> None:
    """Compile both at once; exit with 1 if numba fails, with an error if g++ does."""
    compiling: subprocess.Popen[bytes] | None = None
    if find_spec("numba") is not None:
        compiling = subprocess.Popen([sys.executable, *_KERNELS])  # noqa: S603 - our own server
    if not why_not():
        cuda_device.compiled()
    if compiling is not None:
        sys.exit(compiling.wait())


if __name__ == "__main__":
    main()
