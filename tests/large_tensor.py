"""A tensor of any size whose result is known from a few planes of it."""

from __future__ import annotations

import numpy as np

import kernel_maps as maps
import oracles
from backend_calls import Applies, applied
from gradwire_server.backends import NumpyCpu
from gradwire_server.plans import BandedMap, Plan

# A prime: planes that are taken for others are found out, whatever power of two lies between them.
_PERIOD = 7


def check_planes(backend: Applies, *, planes: int, side: int) -> None:
    """Assert that planes of side x side float32, few of them different, give NumPy's bits each."""
    down = maps.linear(side // 2, side).adjoint()
    rng = np.random.default_rng(6)
    some = rng.standard_normal((_PERIOD, side, side)).astype(np.float32)
    expected = applied(NumpyCpu(), _plan(down, some.shape), some, np.float32)
    x = np.empty((planes, side, side), np.float32)
    for first in range(0, planes, _PERIOD):
        part = x[first : first + _PERIOD]
        part[...] = some[: len(part)]
    y = applied(backend, _plan(down, x.shape), x, np.float32)
    for first in range(0, planes, _PERIOD):
        part = y[first : first + _PERIOD]
        oracles.same_bits(part, expected[: len(part)])


def _plan(down: BandedMap, shape: tuple[int, ...]) -> Plan:
    return Plan.build([None, down, down], shape)
