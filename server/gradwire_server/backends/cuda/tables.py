"""Maps as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.plans import BandedMap

Array = npt.NDArray[Any]

# So far below what 32 bits hold that a place beyond the last tile is still a number.
MOST = 2**31 - 2**16

# Records are read as vectors of so many bytes.
_RECORD_BYTES = 16


def check(bands: BandedMap) -> None:
    """Raise ValueError where an index of a map takes more than 32 bits."""
    if max(bands.inputs, bands.outputs, bands.nnz) >= MOST:
        raise ValueError(
            f"a map has {bands.inputs} inputs, {bands.outputs} outputs and {bands.nnz} weights; "
            f"CUDA kernels index up to {MOST - 1}"
        )


def reach(bands: BandedMap) -> int:
    """Most outputs that read one input, counted in a map that ascends."""
    inputs = np.arange(bands.inputs)
    begun = np.searchsorted(bands.start, inputs, "right")
    ended = np.searchsorted(bands.stop, inputs, "right")
    return int((begun - ended).max(initial=0))


def records(bands: BandedMap, compute: np.dtype[Any], most: int) -> Array:
    """Return what each input adds to which outputs, of a map that ascends.

    [inputs] of: weight, `most` numbers of the compute type, 0 beyond count; int32 first, the first
    output that reads the input; int32 count, how many do. Padded to multiples of 16 bytes.
    """
    size = most * compute.itemsize + 8
    kind = np.dtype(
        {
            "names": ["weight", "first", "count"],
            "formats": [(compute, (most,)), np.int32, np.int32],
            "offsets": [0, size - 8, size - 4],
            "itemsize": -(-size // _RECORD_BYTES) * _RECORD_BYTES,
        }
    )
    columns = bands.adjoint()
    made = np.zeros(bands.inputs, kind)
    made["first"], made["count"] = columns.start, columns.counts
    owner = np.arange(bands.inputs).repeat(columns.counts)
    made["weight"][owner, np.arange(columns.nnz) - columns.offset[owner]] = columns.weight
    return made


def selects(bands: BandedMap, compute: np.dtype[Any]) -> bool:
    """Whether every output is one input unchanged, or has none."""
    most = int(bands.counts.max(initial=0))
    return most <= 1 and bool((bands.weight.astype(compute) == 1).all())


def selected(bands: BandedMap) -> Array:
    """Return the one input of each output, -1 where there is none: int32[outputs]."""
    check(bands)
    return np.where(bands.counts == 0, -1, bands.start).astype(np.int32)


def has_steps(bands: BandedMap, step: int, halo: int) -> bool:
    """Whether output i reads exactly those inputs step*i - halo .. step*(i+1) + halo - 1 there are.

    And step * outputs == inputs.
    """
    if step * bands.outputs != bands.inputs:
        return False
    first = np.arange(bands.outputs) * step - halo
    stop = (first + step + 2 * halo).clip(max=bands.inputs)
    return bool((bands.start == first.clip(0)).all() and (bands.stop == stop).all())


def padded_weights(bands: BandedMap, compute: np.dtype[Any], step: int, halo: int) -> Array:
    """Return [outputs, step + 2 * halo] weights of a map with such steps; -0 where no input is.

    A tap of weight -0 on a +0 gives -0, to which any number can be added without a change, and
    which added to any number changes nothing.
    """
    check(bands)
    taps = step + 2 * halo
    made = np.full((bands.outputs, taps), -0.0, compute)
    owner = np.arange(bands.outputs).repeat(bands.counts)
    missing = (bands.start - (np.arange(bands.outputs) * step - halo))[owner]
    made[owner, np.arange(bands.nnz) - bands.offset[owner] + missing] = bands.weight
    return made


def is_ragged(bands: BandedMap) -> bool:
    """Whether weights by tap would take much more memory than the weights themselves."""
    return int(bands.counts.max(initial=0)) * bands.outputs > 4 * bands.nnz + 4096


def weights_by_tap(bands: BandedMap, compute: np.dtype[Any]) -> Array:
    """Return [most taps, outputs] weights, so that neighbors lie side by side; 0 beyond counts."""
    made = np.zeros((int(bands.counts.max(initial=0)), bands.outputs), compute)
    owner = np.arange(bands.outputs).repeat(bands.counts)
    made[np.arange(bands.nnz) - bands.offset[owner], owner] = bands.weight
    return made


def tiles(bands: BandedMap, *, most_inputs: int, most_outputs: int) -> Array | None:
    """Split outputs into tiles that read few inputs together: int32[tiles + 1], where each begins.

    None where one band alone reads too many.
    """
    low, high = bands.start, bands.stop
    if not bands.is_increasing:
        low, high = -high, -low
    if int((high - low).max(initial=0)) > most_inputs:
        return None
    begins = [0]
    while begins[-1] < bands.outputs:
        first = begins[-1]
        stop = int(np.searchsorted(high, low.item(first) + most_inputs, "right"))
        begins.append(min(stop, first + most_outputs, bands.outputs))
    return np.array(begins, np.int32)
