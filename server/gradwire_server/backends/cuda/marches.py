"""Launches along two axes: their tables, grids and arguments, in the order of the parameters.

Tensors are seen as [outer, rows, columns, channels], maps are those of rows and of columns.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gradwire_server.backends.cuda import geometry, kernels, tables
from gradwire_server.backends.cuda.launches import vector_of
from gradwire_server.backends.cuda.programs import Launch
from gradwire_server.backends.cuda.steps import Step
from gradwire_server.plans import BandedMap

Maps = tuple[BandedMap, BandedMap]

_WARPS_OF_A_BLOCK = (geometry.WARP, geometry.WARPS, 1)


def march(step: Step, maps: Maps, *, outer: int, channels: int) -> Launch | None:
    """Apply two maps in one launch, in the fastest way there is; None where there is none."""
    rows, columns = maps
    if channels > tables.MOST:
        return None
    along_rows = partial(
        _march_rows, step, rows, columns, outer=outer, lines=rows.outputs, channels=channels
    )
    if step.formats not in kernels.marching(step.formats[1]):
        return along_rows()
    if channels == 1:
        return _march_steps(step, maps, outer=outer) or along_rows()
    by_channels = partial(_march_channels, step, maps, outer=outer, channels=channels)
    if vector_of(step, channels) > 1:
        return by_channels() or along_rows()
    return along_rows() or by_channels()


def step_vector(dtype: np.dtype[Any], step: int, halo: int) -> int:
    """Return how many inputs of a row a lane of march_steps reads.

    A vector and a step at least, a power of 2, and no less than the halo.
    """
    return max(kernels.lanes(dtype), step, 1 << (halo - 1).bit_length() if halo else 0)


def _march_steps(step: Step, maps: Maps, *, outer: int) -> Launch | None:
    """Take bands that advance by the same even step on both axes, on rows of whole vectors."""
    rows, columns = maps
    found = _steps_of(maps)
    if found is None or columns.inputs % (vector := step_vector(step.formats[0], *found)):
        return None
    vectors = columns.inputs // vector
    lanes, tiles = geometry.step_tiles(vectors)
    strip = step.making.strip(rows.outputs, threads=outer * tiles * lanes)
    jobs = outer * tiles * -(-rows.outputs // strip)
    step_size, halo = found
    weights = [
        step.making.table(
            (one, "by step", found),
            partial(tables.padded_weights, one, step.making.compute, step_size, halo),
        )
        for one in maps
    ]
    return Launch(
        kernels.march_steps(step.formats, *found),
        geometry.blocks(jobs, per_block=geometry.THREADS // lanes),
        _WARPS_OF_A_BLOCK,
        (
            *(step.result, step.source, *weights),
            np.uint32(jobs),
            *map(np.int32, (rows.outputs, columns.outputs, strip, lanes, tiles)),
        ),
    )


def _steps_of(maps: Maps) -> tuple[int, int] | None:
    for step, halo in kernels.STEPS:
        if all(tables.has_steps(one, step, halo) for one in maps):
            return step, halo
    return None


def march_along(step: Step, columns: BandedMap, *, outer: int) -> Launch | None:
    """Apply one map to the rows of [outer, columns]; None where its bands are too wide."""
    if outer > tables.MOST:
        return None
    return _march_rows(step, None, columns, outer=1, lines=outer, channels=1)


def _march_rows(
    step: Step,
    rows: BandedMap | None,
    columns: BandedMap,
    *,
    outer: int,
    lines: int,
    channels: int,
) -> Launch | None:
    """Take bands of any kind, where all channels of one fit a tile.

    lines  output rows of an image
    """
    longest = max(columns.inputs, columns.outputs) * channels
    each = next((n for n in kernels.EACH if longest <= n * geometry.WARP), kernels.EACH[-1])
    widest = int(columns.counts.max(initial=0))
    taps = next((n for n in kernels.TAPS if widest <= n), 0)
    inputs, outputs = (
        lanes * geometry.WARP // channels for lanes in (each, kernels.row_outputs(each, taps))
    )
    if not outputs or tables.is_ragged(columns):
        return None
    found = tables.tiles(columns, most_inputs=inputs, most_outputs=outputs)
    if found is None:
        return None
    tiles = len(found) - 1
    making = step.making
    strip = making.strip(lines, threads=outer * tiles * geometry.WARP)
    jobs = outer * tiles * -(-lines // strip)
    by_tap = making.table(
        (columns, "by tap"), lambda: tables.weights_by_tap(columns, making.compute)
    )
    return Launch(
        kernels.march_rows(step.formats, each, taps),
        geometry.blocks(jobs, per_block=geometry.WARPS),
        _WARPS_OF_A_BLOCK,
        (
            *(step.result, step.source),
            *((np.uint64(0),) * 3 if rows is None else making.bands(rows)),
            *(*making.spans(columns), by_tap),
            making.table((columns, "tiles", inputs, outputs), lambda: found),
            np.uint32(jobs),
            *map(np.int32, (lines if rows is None else rows.inputs, lines)),
            *map(np.int32, (columns.inputs, columns.outputs)),
            *map(np.int32, (channels, tiles, strip)),
            step.fill_bits,
        ),
    )


def _march_channels(step: Step, maps: Maps, *, outer: int, channels: int) -> Launch | None:
    """Take maps whose columns ascend and are each read by few outputs."""
    rows, columns = maps
    if not columns.is_increasing:
        return None
    reach = tables.reach(columns)
    most = next((one for one in kernels.OPEN if reach <= one), None)
    if most is None:
        return None
    vector = vector_of(step, channels)
    threads = outer * rows.outputs * (channels // vector)
    strip = step.making.strip(columns.outputs, threads=threads)
    jobs = threads * -(-columns.outputs // strip)
    making = step.making
    records = making.table(
        (columns, "records", most), lambda: tables.records(columns, making.compute, most)
    )
    return Launch(
        kernels.march_channels(step.formats, vector, most),
        geometry.blocks(jobs, per_block=geometry.THREADS),
        (geometry.THREADS, 1, 1),
        (
            *(step.result, step.source, *making.bands(rows), *making.spans(columns), records),
            np.uint32(jobs),
            *map(np.int32, (rows.inputs, rows.outputs, columns.inputs, columns.outputs)),
            *map(np.int32, (channels, strip)),
            step.fill_bits,
        ),
    )
