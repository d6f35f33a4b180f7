"""What tests of CUDA kernels need of a machine, with the reason where it is not there."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from cudasim.compiler import why_not

needs_simulator = pytest.mark.skipif(bool(why_not()), reason=why_not() or "g++ is here")

# NVRTC; and what takes minutes, which runs where CUDA is worked on.
needs_cuda_packages = pytest.mark.skipif(
    find_spec("cupy") is None, reason="CuPy is not installed; .ci/cuda installs it"
)
needs_no_cupy = pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
