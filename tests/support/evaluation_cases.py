"""Small evaluations of every layout, and what the backend makes of each in one go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire_server.backends import Backend
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.engine import EvaluationRequest, Prepared, TensorSpec, in_memory
from gradwire_server.engine.layout import lay_out
from gradwire_server.engine.tiling import walk_over
from gradwire_server.plans import Plan
from support.kernels.backend_calls import applied
from support.oracles import oracles

BACKEND = NumpyCpu()
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """A plan with tensors laid out some way."""

    plan: Plan
    source: TensorSpec
    result: TensorSpec
    slab: int

    @classmethod
    def packed(cls, plan: Plan, slab: int) -> Case:
        """Lay out tensors of float32 without gaps."""
        shapes = plan.input_shape, plan.output_shape
        source, result = (TensorSpec.packed(np.dtype(np.float32), each) for each in shapes)
        return cls(plan, source, result, slab)

    def evaluation(self) -> Prepared:
        """Prepare it, without any limits."""
        walk = walk_over(lay_out(self.source, self.result), self.plan, self.slab)
        request = EvaluationRequest("test", (), self.source, self.result)
        return Prepared(request, self.result, self.plan, walk)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    sizes = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    bands = [draw(st.none() | oracles.banded_maps(inputs=size, most=12)) for size in sizes]
    plan = Plan.build(bands, sizes, fill=draw(st.sampled_from([0.0, 7.0])))
    dtype = np.dtype(draw(st.sampled_from([np.float32, np.float16, np.float64])))
    order = draw(st.permutations(range(rank)))
    broadcast = {axis for axis in range(rank) if draw(st.integers(0, 3)) == 0}
    result_order = order if draw(st.booleans()) else draw(st.permutations(range(rank)))

    def spec(sizes: tuple[int, ...], order: list[int], broadcast: set[int]) -> TensorSpec:
        strides, step = [0] * rank, 1
        for axis in reversed(order):
            if axis not in broadcast:
                strides[axis] = step
                step *= sizes[axis]
        return TensorSpec(dtype, sizes, tuple(strides))

    source = spec(sizes, order, broadcast)
    result = spec(plan.output_shape, result_order, set())
    return Case(plan, source, result, draw(st.integers(1, 200)))


def data_for(spec: TensorSpec, seed: int = 0) -> Bytes:
    values = np.random.default_rng(seed).normal(size=spec.wire_bytes // spec.dtype.itemsize)
    return values.astype(spec.dtype).view(np.uint8)


def strided(data: Bytes, spec: TensorSpec) -> NDArray[np.generic]:
    values = data.view(spec.dtype)
    assert len(values) == 1 + sum(np.subtract(spec.sizes, 1) * spec.strides)
    strides = [stride * spec.dtype.itemsize for stride in spec.strides]
    return np.lib.stride_tricks.as_strided(values, spec.sizes, strides)


def computed(prepared: Prepared, data: Bytes, backend: Backend = BACKEND) -> Bytes:
    result = np.full(prepared.output.wire_bytes, 0xA5, np.uint8)
    list(in_memory(prepared, result, data, backend))
    return result


def expected(case: Case, data: Bytes) -> Bytes:
    result = applied(BACKEND, case.plan, strided(data, case.source), case.result.dtype)
    order = sorted(range(len(case.result.sizes)), key=lambda axis: -case.result.strides[axis])
    return np.ascontiguousarray(result.transpose(order)).reshape(-1).view(np.uint8)
