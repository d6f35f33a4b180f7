"""Compile what tests share, so that none compiles it within its time, and no two do so at once.

    python tests/support/prepare.py    needs nothing; what cannot be compiled here is left out

That is the kernels of `numba_cpu`, and those of CUDA for the simulated device. Both are kept.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

from cudasim.module import why_not
from support.kernels import cuda_device

_KERNELS = ("-m", "gradwire_server", "--compile-only", "--backend", "numba_cpu")


def main() -> None:
    """Compile both at once; exit with 1 if numba fails, with an error if g++ does."""
    command = [sys.executable, *_KERNELS] if find_spec("numba") else ["/usr/bin/true"]
    with subprocess.Popen(command) as compiling:  # noqa: S603 - our own server
        if not why_not():
            cuda_device.compiled()
    sys.exit(compiling.returncode)


if __name__ == "__main__":
    main()
