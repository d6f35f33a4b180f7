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
# Modules of kernels that take as long as each other, and compile without each other.
_HALVES = (("nearest",), ("rows", "width"))
_COMPILE_HALF = """
import sys
from importlib import import_module
from gradwire_server.backends.numba_cpu import compilation

half = [f"gradwire_server.backends.numba_cpu.{name}" for name in sys.argv[1:]]
vars(compilation)["_import"] = lambda: [import_module(name) for name in half]
compilation.load("")
"""


def main() -> None:
    """Compile both at once; exit with 1 if numba fails, with an error if g++ does."""
    halves: list[subprocess.Popen[bytes]] = []
    if find_spec("numba") is not None:
        halves = [_python("-c", _COMPILE_HALF, *half) for half in _HALVES]
    if not why_not():
        cuda_device.compiled()
    ended = [half.wait() for half in halves]
    if any(ended):
        sys.exit(1)
    sys.exit(_python(*_KERNELS).wait() if halves else 0)


def _python(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *words])  # noqa: S603 - our own server


if __name__ == "__main__":
    main()
