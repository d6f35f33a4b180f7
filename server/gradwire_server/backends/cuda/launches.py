"""Launches along one axis: their tables, grids and arguments, in the order of the parameters.

Tensors are seen as [outer, axis, inner].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gradwire_server.backends.cuda import geometry, kernels, tables
from gradwire_server.backends.cuda.programs import Launch
from gradwire_server.backends.cuda.steps import Step
from gradwire_server.plans import BandedMap

# Outputs that a thread makes without a gain from what they share: its start is paid by then.
_SHORT_STRIP = 8

_BLOCK = (geometry.THREADS, 1, 1)


def axis_pass(
    step: Step, bands: BandedMap, *, outer: int, inner: int, carried: int | None = None
) -> Launch:
    """Apply a map along the axis.

    carried  how many outputs, from the first, add to what the result holds; None if none do, and
             those without taps are to be filled
    """
    if inner == 1:
        return _contiguous_pass(step, bands, outer=outer, carried=carried)
    vector = vector_of(step, inner)
    threads = outer * (inner // vector)
    strip = step.making.strip(bands.outputs, threads=threads, most=_SHORT_STRIP)
    jobs = threads * -(-bands.outputs // strip)
    return Launch(
        kernels.axis_pass(step.formats, vector),
        geometry.blocks(jobs, per_block=geometry.THREADS),
        _BLOCK,
        (
            *(step.result, step.source, *step.making.bands(bands)),
            np.uint32(jobs),
            np.int64(inner),
            *map(np.int32, (bands.inputs, bands.outputs, strip, carried or 0)),
            step.fill_bits,
        ),
    )


def _contiguous_pass(step: Step, bands: BandedMap, *, outer: int, carried: int | None) -> Launch:
    rows, tile = geometry.rows_of_block(outer, bands.outputs)
    jobs = -(-outer // rows) * -(-bands.outputs // tile)
    return Launch(
        kernels.contiguous_pass(step.formats),
        geometry.blocks(jobs, per_block=1),
        _BLOCK,
        (
            *(step.result, step.source, *step.making.bands(bands)),
            np.int64(outer),
            *map(np.int32, (bands.inputs, bands.outputs, rows, tile, carried or 0)),
            step.fill_bits,
        ),
    )


def select(
    step: Step,
    maps: Sequence[BandedMap | None],
    lengths: Sequence[int],
    *,
    outer: int,
    inner: int,
) -> Launch:
    """Copy one number, or the fill, to each output of [outer, three axes, inner].

    maps     of the axes; None where nothing happens
    lengths  of the axes of the input
    """
    vector = vector_of(step, inner)
    sizes = list(zip(maps, lengths, strict=True))
    picked = [step.making.table(("picked", *one), partial(_picked, *one)) for one in sizes]
    outputs = [length if one is None else one.outputs for one, length in sizes]
    threads = outer * outputs[0] * outputs[2] * (inner // vector)
    strip = step.making.strip(outputs[1], threads=threads, most=_SHORT_STRIP)
    jobs = threads * -(-outputs[1] // strip)
    return Launch(
        kernels.select_inputs(step.formats[0].itemsize, vector),
        geometry.blocks(jobs, per_block=geometry.THREADS),
        _BLOCK,
        (
            *(step.result, step.source, *picked),
            np.uint32(jobs),
            np.int64(inner),
            *map(np.int32, (*lengths, *outputs, strip)),
            step.fill_bits,
        ),
    )


def convert(step: Step, *, count: int) -> Launch:
    """Write so many numbers of the one type as numbers of the other."""
    return Launch(
        kernels.convert(step.formats),
        geometry.blocks_of_loop(count),
        _BLOCK,
        (step.result, step.source, np.int64(count)),
    )


def fill_bands(step: Step, bands: BandedMap, *, outer: int, inner: int) -> Launch:
    """Write the fill to all outputs without taps."""
    empty = np.flatnonzero(bands.counts == 0).astype(np.int32)
    index = step.making.table((bands, "empty"), lambda: empty)
    return Launch(
        kernels.fill_bands(step.formats[1]),
        geometry.blocks_of_loop(outer * len(empty) * inner),
        _BLOCK,
        (
            *(step.result, index),
            *map(np.int64, (outer, inner)),
            *map(np.int32, (bands.outputs, len(empty))),
            step.fill_bits,
        ),
    )


def vector_of(step: Step, inner: int) -> int:
    """Return how many neighbors a thread takes: a vector of what it reads, where rows are whole."""
    lanes = kernels.lanes(step.formats[0])
    return lanes if inner % lanes == 0 else 1


def _picked(bands: BandedMap | None, length: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(length, dtype=np.int32) if bands is None else tables.selected(bands)
