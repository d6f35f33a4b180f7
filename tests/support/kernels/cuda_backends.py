"""CUDA backends on simulated devices, plans for them, and what they need of a machine."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from cudasim.module import why_not
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.plans import Plan
from support.kernels import cuda_device, kernel_table
from support.kernels import kernel_maps as maps
from support.kernels.cuda_device import SimulatedDevice
from support.oracles import oracles

needs_simulator = pytest.mark.skipif(bool(why_not()), reason=why_not() or "g++ is here")

# For NVRTC, and for what takes minutes.
needs_cuda_packages = pytest.mark.skipif(
    find_spec("cupy") is None, reason="CuPy is not installed; .ci/cuda installs it"
)

MIB = 1 << 20


def simulated(**more: Any) -> SimulatedDevice:
    return SimulatedDevice(cuda_device.compiled(), **more)


def sliced_plan(outer: int, side: int) -> Plan:
    """Return a plan that halves two axes of each slice; slices can be computed in parts."""
    up = maps.linear(side, 2 * side)
    return oracles.adjoint(Plan.build([None, up, up], (outer, side, side)))


def check(backend: Cuda, plan: Plan, seed: int = 0) -> None:
    x = np.random.default_rng(seed).standard_normal(plan.input_shape).astype(np.float32)
    kernel_table.check(backend, plan, x, np.float32)
