"""Execution of a prepared evaluation's steps.

Rows are [outer, rows, *inner], as a Walk sees both tensors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from gradwire_server.backends import Backend, BindsArrays, TellsHeldBytes, compute_dtype
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.engine.prepared import BATCHES, Array, Bytes, Prepared
from gradwire_server.engine.tiling import Step, touched
from gradwire_server.plans import BandedMap, Pass, Plan, fill_empty

# Elements of a step on tensors in memory: a few milliseconds of work if rows are repeated.
_LARGE_SLAB = 1 << 25
# Input and result of an evaluation on a workbench.
_WORKBENCH_BYTES = 1 << 16

# Memory of input and result, and the function that computes there.
_Bound = tuple[memoryview, memoryview, Callable[[], None]]


class Execution:
    """Computes the steps of one evaluation, in order.

    In the mode running they must be consecutive, from the first step that is not done.

    backend  may be replaced between steps
    """

    def __init__(self, prepared: Prepared, backend: Backend) -> None:
        self._prepared, self.backend = prepared, backend
        # Partial sums of incomplete results from earlier rows.
        self._sums: Array | None = None

    def step(self, step: Step, data: Bytes, result: Bytes) -> None:
        """Compute a step from wire bytes to wire bytes."""
        prepared = self._prepared
        self.rows(step, prepared.input_rows(step, data), prepared.output_rows(step, result))

    def rows(self, step: Step, rows: Array, result: Array) -> None:
        """Compute a step from its input rows to its result rows.

        Input rows may have any strides. Result rows are contiguous and apart from the input.
        """
        walk = self._prepared.walk
        with default_float_environment():
            if walk.mode == "running" and walk.map is not None:
                self._add(walk.map, step, rows, result)
            else:
                self.backend.apply(walk.plan_of(step), rows, result)

    def _add(self, bands: BandedMap, step: Step, rows: Array, result: Array) -> None:
        """Add rows to results; write complete ones, keep the other sums."""
        walk, backend, sums = self._prepared.walk, self.backend, self._sums
        reach = touched(bands, step.in_stop)
        window = bands.window(step.out_first, reach, step.in_first, step.in_stop)
        passes = walk.passes(window)
        stream = next(index for index, one in enumerate(passes) if one.axis == 1)
        arrived = _before_stream(passes[:stream], rows, compute_dtype(result.dtype), backend)
        reached = np.empty((1, reach - step.out_first, *arrived.shape[2:]), arrived.dtype)
        carried = 0
        if sums is not None:
            carried = sums.shape[1]
            reached[:, :carried] = sums
        backend.accumulate(window, arrived, reached, axis=1, carried=carried)
        done = step.out_stop - step.out_first
        if done:
            complete = reached[:, :done]
            backend.apply(Plan(complete.shape, passes[stream + 1 :]), complete, result)
            # A pass does not know the empty bands of other passes: overwrite their results.
            finished = window.window(0, done, 0, window.inputs)
            fill_empty(walk.passes(finished), result, fill=walk.plan.fill)
        self._sums = reached[:, done:].copy() if step.out_stop < bands.outputs else None


def _before_stream(
    passes: tuple[Pass, ...], rows: Array, compute: np.dtype[np.floating], backend: Backend
) -> Array:
    """Apply the passes before the stream axis's pass.

    Results stay in the compute type.
    """
    if not passes and rows.dtype == compute:
        return rows
    plan = Plan(rows.shape, passes)
    arrived = np.empty(plan.output_shape, compute)
    backend.apply(plan, rows, arrived)
    return arrived


def rows_of(prepared: Prepared, array: Array) -> Array:
    """Return an input or a result as [outer, rows, *inner].

    It is a view if `are_rows`, otherwise a copy.
    """
    walk = prepared.walk
    stored = array.transpose(walk.layout.order)
    return stored.reshape(walk.outer, *stored.shape[walk.axis :])


def are_rows(prepared: Prepared, array: Array) -> bool:
    """Whether the array's own memory can be viewed as [outer, rows, *inner]."""
    is_typed = array.dtype == prepared.input.dtype
    return is_typed and np.may_share_memory(rows_of(prepared, array), array)


def in_memory(prepared: Prepared, result: Bytes, data: Bytes, backend: Backend) -> Iterator[Step]:
    """Execute all steps on complete wire bytes, in few steps.

    Input and result are complete, and steps as few as possible. Record the time in
    prepared.measured.
    """
    # Later calls reuse its plans, and the jobs that the backend made of them.
    if backend not in prepared.derived:
        other = _in_large_steps(prepared, backend)
        # Not the evaluation itself: a cycle would outlive the cache until a garbage collection.
        prepared.derived[backend] = None if other is prepared else other
    large, seconds = prepared.derived[backend] or prepared, 0.0
    execution = Execution(large, backend)
    for step in large.steps():
        began = time.perf_counter()
        source, target = slice(*large.input_range(step)), slice(*large.output_range(step))
        execution.step(step, data[source], result[target])
        seconds += time.perf_counter() - began
        yield step
    prepared.measured.note(seconds)


def at_once(prepared: Prepared, data: bytes | memoryview, backend: Backend) -> Bytes:
    """Execute all steps; return the wire bytes of the result."""
    if prepared.most_at_once:
        return together(prepared, (data,), backend).reshape(-1)
    result = np.empty(prepared.output.wire_bytes, np.uint8)
    deque(in_memory(prepared, result, np.frombuffer(data, np.uint8), backend), 0)
    return result


class Workbench:
    """Memory that stays in place, in which one thread computes short evaluations.

    It stays in the processor's caches, and backends look its addresses up once.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._input, self._result = (np.empty(_WORKBENCH_BYTES, np.uint8) for _ in range(2))

    def takes(self, prepared: Prepared) -> bool:
        """Whether the evaluation is one step, and its tensors fit."""
        most = max(prepared.input.wire_bytes, prepared.output.wire_bytes)
        return most <= _WORKBENCH_BYTES and prepared.most_at_once > 0

    def run(self, prepared: Prepared, data: bytes | memoryview) -> memoryview:
        """Execute all steps; return the wire bytes of the result.

        They last until the next run. It must take the evaluation.
        """
        bound: _Bound | None = prepared.derived.get(self)
        if bound is None:
            bound = prepared.derived[self] = self._bind(prepared)
        source, result, compute = bound
        source[:] = data
        with default_float_environment():
            compute()
        return result

    def _bind(self, prepared: Prepared) -> _Bound:
        """Return memory of input and result, and what computes there."""
        source = self._input[: prepared.input.wire_bytes]
        result = self._result[: prepared.output.wire_bytes]
        step, backend = next(prepared.steps()), self.backend
        rows = prepared.input_rows(step, source)
        work = prepared.walk.plan_of(step), rows, prepared.output_rows(step, result)
        if isinstance(backend, BindsArrays):
            return source.data, result.data, backend.bound(*work)
        return source.data, result.data, partial(backend.apply, *work)


def _in_large_steps(prepared: Prepared, backend: Backend) -> Prepared:
    """Return the evaluation in large steps.

    Small steps remain if large ones take more memory. A computing thread takes the GIL a few times
    per step, and a busy event loop releases it late. Small steps suit streamed input, and broadcast
    axes that a backend needs expanded.
    """
    walk = prepared.walk
    if (
        prepared.only_step is not None
        or not (prepared.output.elements and walk.plan.passes)
        or not isinstance(backend, TellsHeldBytes)
        or walk.layout.held
    ):
        return prepared
    large = prepared.with_slab(max(walk.slab, _LARGE_SLAB))
    if large.walk.mode == "running":
        return prepared
    itemsize = prepared.input.dtype.itemsize
    step = next(large.steps())
    first, stop = large.input_range(step)
    rows = large.input_rows(step, np.empty(stop - first, np.uint8))
    plan = large.walk.plan_of(step)
    y = np.broadcast_to(np.empty(1, prepared.input.dtype), plan.output_shape)
    return large if backend.held_bytes(plan, rows, y) <= walk.slab * itemsize else prepared


def together(prepared: Prepared, inputs: Sequence[bytes | memoryview], backend: Backend) -> Bytes:
    """Execute equal evaluations as one step; return each one's bytes.

    The results are [evaluation, byte].

    inputs  the wire bytes of each input: at least one, at most prepared.most_at_once
    """
    began = time.perf_counter()
    count = len(inputs)
    size = next(size for size in BATCHES if size >= count)
    data = inputs[0] if size == 1 else b"".join([*inputs, *[inputs[-1]] * (size - count)])
    walk = prepared.walk
    step = Step(0, size * walk.outer, 0, walk.in_rows, 0, walk.out_rows)
    result = np.empty((size, prepared.output.wire_bytes), np.uint8)
    Execution(prepared, backend).step(step, np.frombuffer(data, np.uint8), result.reshape(-1))
    prepared.measured.note((time.perf_counter() - began) / size)
    return result[:count]
