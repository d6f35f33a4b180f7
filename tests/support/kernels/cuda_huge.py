"""Tensors of more than 2**31 numbers, of which nearly all are pages of zeros that nobody touches.

Only the last blocks of each launch run, and only what they write is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cudasim.module import Buffer, Module
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.programs import Buffer as Place
from gradwire_server.backends.cuda.programs import Program, X, Y
from gradwire_server.plans import BandedMap, Plan
from support.kernels import cuda_device
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.oracles import oracles

_HALF = np.dtype(np.float16)


class Huge(NamedTuple):
    """A plan for a huge tensor, and how much of its end is looked at.

    shape   of the input
    moving  maps by axis
    tail    outputs along the first axis that are computed
    seen    how many numbers at the end of them are compared, 0 for all
    """

    name: str
    shape: tuple[int, ...]
    moving: Mapping[int, BandedMap]
    tail: int = 2
    seen: int = 0

    @property
    def plan(self) -> Plan:
        return _plan(self.shape, self.moving)

    @property
    def program(self) -> Program:
        return cuda_device.program(self.plan, _HALF, _HALF)

    def check(self, module: Module) -> None:
        """Assert that the end of the result has NumPy's bits."""
        plan, moving, first = self.plan, dict(self.moving), self.shape[0] - self.tail
        if bands := self.moving.get(0):
            begin = bands.outputs - self.tail
            first = int(bands.start[begin:].min())
            moving[0] = bands.window(begin, bands.outputs, first, bands.inputs)
        rng = np.random.default_rng(len(self.name))
        x = rng.standard_normal((self.shape[0] - first, *self.shape[1:])).astype(_HALF)
        expected = applied(NumpyCpu(), _plan(x.shape, moving), x, _HALF)
        expected = expected.ravel()[-self.seen :]
        source = module.sparse(math.prod(self.shape) * _HALF.itemsize)
        source.view(_HALF, x.size, first=math.prod(self.shape) - x.size)[:] = x.ravel()
        # One thread makes at most 64 outputs along the first axis, one after the other.
        share = (self.tail + 64) / plan.output_shape[0]
        _check_last_blocks(module, plan, source, expected, share=share)


def check_huge_rows(module: Module) -> None:
    """Assert the same of two rows of 2**30 numbers each that become three."""
    length, seen, filled = 2**30 + 8, 500, 1 << 16
    bands = maps.linear(2, 3)
    plan = _plan((2, length), {0: bands})
    x = np.random.default_rng(1).standard_normal((2, filled)).astype(_HALF)
    expected = applied(NumpyCpu(), _plan(x.shape, {0: bands}), x, _HALF)
    source = module.sparse(2 * length * _HALF.itemsize)
    for row in range(2):
        source.view(_HALF, filled, first=(row + 1) * length - filled)[:] = x[row]
    _check_last_blocks(module, plan, source, expected[-1, -seen:].copy(), share=8 / 2**20)


def huge() -> list[Huge]:
    """Return a plan for each kernel, whose input or output has more than 2**31 numbers."""
    up, down, nearest = maps.linear, maps.linear(500, 1000).adjoint(), maps.nearest
    gaps = maps.thinned(maps.linear(8, 6), np.arange(6) == 5)
    large, wide = maps.linear(23_552, 47_104).adjoint(), up(17_000, 16_500)
    image, copied = up(47_000, 46_000), nearest(23_500, 47_000)
    twice, halved = nearest(250, 500), nearest(500, 250)
    return [
        Huge("one axis, much inside", (300_000, 9, 1000), {1: maps.cubic(9, 7)}),
        Huge("one axis, little inside", (90_000_000, 9, 3), {1: up(9, 10)}, tail=9),
        Huge("the last axis", (2_200_000, 1000), {1: down}, tail=40),
        Huge("the last axis, more out", (2_200_000, 500), {1: up(500, 1000)}, tail=40),
        Huge("two axes", (9000, 500, 500), {1: up(500, 400), 2: up(500, 411)}),
        Huge("two axes, more out", (9000, 410, 401), {1: up(410, 500), 2: up(401, 501)}),
        Huge("two axes by steps", (2200, 1000, 1000), {1: down, 2: down}),
        Huge("two axes of channels", (36_000, 31, 31, 64), {1: up(31, 20), 2: up(31, 22)}),
        Huge("copied to more", (9000, 250, 250), {1: twice, 2: twice}),
        Huge("copied to fewer", (9000, 500, 500), {1: halved, 2: halved}),
        Huge("gaps", (300_000, 8, 30, 30), {1: gaps, 2: up(30, 31), 3: up(30, 40)}),
        Huge("one large image", (47_000, 47_000), {0: image, 1: image}),
        Huge("one large image by steps", (47_104, 47_104), {0: large, 1: large}),
        Huge("one large image of channels", (17_000, 17_000, 8), {0: wide, 1: wide}, seen=200),
        Huge("one large image, copied", (23_500, 23_500), {0: copied, 1: copied}),
    ]


def _plan(shape: tuple[int, ...], moving: Mapping[int, BandedMap]) -> Plan:
    return Plan.build([moving.get(axis) for axis in range(len(shape))], shape, fill=-1.5)


def _check_last_blocks(
    module: Module, plan: Plan, x: Buffer, expected: oracles.Tensor, *, share: float
) -> None:
    """Run the share of each launch's blocks that comes last."""
    size, program = math.prod(plan.output_shape), cuda_device.program(plan, _HALF, _HALF)
    y = module.sparse(size * _HALF.itemsize)
    buffers: dict[Place, Buffer] = {X: x, Y: y}
    buffers |= {place: module.holding(one) for place, one in program.tables.items()}
    buffers |= {place: module.sparse(nbytes) for place, nbytes in program.scratch.items()}
    addresses = {place: buffer.address for place, buffer in buffers.items()}
    for launch in program.launches:
        blocks = math.prod(launch.grid)
        count = min(blocks, math.ceil(blocks * share) + 2)
        module.launch(
            launch.kernel,
            launch.grid,
            launch.block,
            launch.resolved(addresses),
            blocks=(blocks - count, blocks),
        )
    last = y.view(_HALF, expected.size, first=size - expected.size)
    oracles.same_bits(last, expected)
