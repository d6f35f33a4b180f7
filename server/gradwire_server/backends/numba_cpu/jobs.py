"""From a plan to jobs of the fused kernel: what each computes, in blocks of what size.

Neighboring axes without a pass are one axis. What then has the form [outer, depth, height, width,
channels], with passes in that order on some of the three between, is one job. Any other plan takes
its first pass alone and then the rest, through an intermediate tensor of the compute type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.numba_cpu import (
    columns,
    nearest,
    records,
    rows,
    steady,
    streaming,
)
from gradwire_server.backends.numba_cpu.blocking import block
from gradwire_server.backends.numba_cpu.forms import (
    NOTHING_REPEATS,
    Form,
    RepeatedAxes,
    form_of,
    repeats_of,
)
from gradwire_server.backends.numba_cpu.shuffles import CAN_PICK
from gradwire_server.backends.numba_cpu.tables import Steady, Table
from gradwire_server.plans import BandedMap, Pass

permute = import_module("gradwire_server.backends.numba_cpu.permute") if CAN_PICK else None

Formats = tuple[np.dtype[Any], np.dtype[Any]]
Tables = Callable[[BandedMap], Table]


@dataclass(frozen=True, eq=False)
class CompiledPass:
    """One call of the kernel.

    record   array of one records.JOB
    units    blocks of work, which do not depend on one another
    scratch  bytes of buffers that each thread needs
    outputs  numbers of the result
    work     numbers read and written
    tables   kept alive for their addresses
    repeats  what of the input is there once
    """

    record: npt.NDArray[Any]
    units: int
    scratch: int
    outputs: int
    work: int
    tables: tuple[Table, ...]
    repeats: RepeatedAxes

    @cached_property
    def address(self) -> int:
        """Where the record is."""
        address: int = self.record["address"].item()
        return address


def jobs_of(
    shape: Sequence[int],
    passes: Sequence[Pass],
    formats: Formats,
    compute: np.dtype[Any],
    tables: Tables,
    *,
    streamed_bytes: int,
    repeated: Sequence[bool] = (),
) -> list[CompiledPass]:
    """Return the jobs that apply passes one after the other.

    formats         of input and result; between jobs it is the compute type
    streamed_bytes  results of so many bytes, or more, are written past the caches
    repeated        for each axis whether the input is one slice again and again; none if empty
    """
    form = form_of(shape, passes)
    repeats = repeats_of(shape, passes, repeated) if form and repeated else NOTHING_REPEATS
    job = None if form is None else _job(form, formats, compute, tables, streamed_bytes, repeats)
    if job is not None:
        return [job]
    first, *rest = passes
    some = partial(jobs_of, compute=compute, tables=tables, streamed_bytes=streamed_bytes)
    between = (*shape[: first.axis], first.map.outputs, *shape[first.axis + 1 :])
    return [
        *some(shape, [first], (formats[0], compute), repeated=repeated),
        *some(between, rest, (compute, formats[1])),
    ]


def accumulation(
    table: Table, shape: Sequence[int], *, axis: int, carried: int
) -> npt.NDArray[Any]:
    """Return the record of a pass over x of this shape that adds to what is there already."""
    compute = table.weight.dtype
    values = {
        "address": 0,
        "axis": table.record,
        "outer": math.prod(shape[:axis]),
        "length": math.prod(shape[axis + 1 :]),
        "carried": carried,
        "number": compute.itemsize,
        "sum": rows.sum_of(compute, weights_are_one=False),
        "sum_onto": rows.onto(compute),
    }
    return _record(records.ACCUMULATION, values)


def _job(
    form: Form,
    formats: Formats,
    compute: np.dtype[Any],
    tables: Tables,
    streamed_bytes: int,
    repeats: RepeatedAxes,
) -> CompiledPass | None:
    """Settle how the kernel goes about one form; None where its buffers would be too large."""
    axes = tuple(None if one is None else tables(one) for one in form.maps)
    blocking = block(form, axes, formats, compute, can_pick=CAN_PICK, streamed_bytes=streamed_bytes)
    if blocking is None:
        return None
    if blocking.method >= records.WINDOW_CHANNELS:
        # Its loops end by addresses.
        repeats = RepeatedAxes(repeats.outer, depth=False, height=False)
    outer_step, depth_step, row_step, input_bytes = form.steps(formats[0].itemsize, repeats)
    stream, stream_zeros = streaming.functions() if blocking.streamed else (0, 0)
    depth, height, width = (table is None or table.is_plain for table in axes)
    plain = (depth, height, width)
    values = {
        "address": 0,
        "number": compute.itemsize,
        "channels": form.channels,
        "outer_step": outer_step,
        "depth_step": depth_step,
        "row_step": row_step,
        "input_bytes": input_bytes,
        "input_narrow": formats[0] != compute,
        "output_narrow": formats[1] != compute,
        "input_size": formats[0].itemsize,
        "output_size": formats[1].itemsize,
        **_axes(form, axes),
        **_functions(plain, formats, compute, method=blocking.method, staged=blocking.staged),
        "stream": stream,
        "stream_zeros": stream_zeros,
        **blocking.values,
        **_steadiness(blocking.steady),
        "groups": blocking.groups.record if blocking.groups else (0,) * 7,
    }
    record = _record(records.JOB, values)
    outputs = blocking.outputs
    kept = tuple(table for table in axes if table is not None)
    work = form.inputs + outputs
    return CompiledPass(record, blocking.units, blocking.scratch, outputs, work, kept, repeats)


def _record(kind: np.dtype[Any], values: dict[str, Any]) -> npt.NDArray[Any]:
    """Make a record that knows its own address. All fields are int64, or tuples of such."""
    names: tuple[str, ...] = kind.names or ()
    fields: Any = kind.fields
    if len(values) != len(names):
        raise TypeError(f"a record needs {sorted(set(names) ^ set(values))}")
    numbers: list[int] = []
    for name in names:
        value = values[name]
        if isinstance(value, int):
            numbers.append(value)
        else:
            numbers.extend(value)
    # A view takes a fraction of the time of an array of nested tuples.
    record = np.array(numbers, np.int64)
    record[fields["address"][1] // record.itemsize] = record.ctypes.data
    return record.view(kind)


def _axes(form: Form, axes: Sequence[Table | None]) -> dict[str, Any]:
    lengths = (form.depth, form.height, form.width)
    return {
        name: (0, length, length, 0, 0, 0, 0, 0) if table is None else table.record
        for name, length, table in zip(("depth", "height", "width"), lengths, axes, strict=True)
    }


@cache
def _functions(
    plain: tuple[bool, bool, bool],
    formats: Formats,
    compute: np.dtype[Any],
    *,
    method: int,
    staged: bool,
) -> dict[str, int]:
    """Addresses of the functions for each stage. plain: whether weights are 1, axis by axis."""
    depth, height, width = plain
    arrived = compute if staged else formats[0]
    return {
        "depth_sum": rows.sum_of(formats[0], weights_are_one=depth),
        "height_sum": rows.sum_of(arrived, weights_are_one=height),
        "width_sum": rows.sum_of(compute, weights_are_one=width),
        "width_stage": _width_stage(method, formats[0], compute),
        "to_columns": columns.to_columns(compute),
        "to_rows": columns.to_rows(compute),
        "convert": rows.convert_to(formats[1]),
    }


def _width_stage(method: int, memory: np.dtype[Any], compute: np.dtype[Any]) -> int:
    if method >= records.WINDOW_CHANNELS:
        return nearest.stage_of(memory)
    if method in {records.NO_WIDTH, records.CHANNELS}:
        return 0
    if method == records.COLUMNS:
        return columns.of_columns(compute)
    if permute is not None and method == records.PERMUTE:
        return int(permute.stage_of(compute))
    return steady.halving(compute) if method == records.HALVE else steady.doubling(compute)


def _steadiness(steadily: Steady | None) -> dict[str, Any]:
    none = (0, 0, 0)
    if steadily is None:
        return {"steady_first": 0, "steady_stop": 0, "even": none, "odd": none}
    phases = [*steadily.phases, none]
    return {
        "steady_first": steadily.first,
        "steady_stop": steadily.stop,
        "even": tuple(phases[0]),
        "odd": tuple(phases[1]),
    }
