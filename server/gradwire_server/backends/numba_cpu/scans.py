"""Compiled loops over tables, whose NumPy equivalents take longer than the kernels do.

Weights are compared by their bits, as integers, because zeros of both signs differ.
"""

from __future__ import annotations

from numba import njit, types

from gradwire_server.backends.numba_cpu.vectors import part

_INT = types.int64
_INDICES = types.Array(_INT, 1, "C", readonly=True)
_WEIGHTS = types.Array(types.float64, 1, "C", readonly=True)
_FACTS = [
    types.UniTuple(_INT, 6)(_INDICES, _INDICES, _WEIGHTS, compute[::1])
    for compute in (types.float32, types.float64)
]
_STEADY = [
    types.UniTuple(_INT, 2)(_INDICES, _INDICES, bits[::1], _INT, _INT)
    for bits in (types.int32, types.int64)
]
_GROUP = [
    types.UniTuple(_INT, 3)(_INDICES, _INDICES, bits[::1], _INT, _INT[::1], bits[:, :, ::1])
    for bits in (types.int32, types.int64)
]
_WIDEST_SPAN = _INT(_INDICES, _INDICES, _INT)


@njit(_FACTS, nogil=True, cache=True)
def round_weights(start, offset, weight, rounded):
    """Round weights to a compute type; return the fields of tables.Facts."""
    plain = 1
    for i in range(len(weight)):
        rounded[i] = weight[i]
        if rounded[i] != 1:
            plain = 0
    fewest = most = offset[1] - offset[0]
    for j in range(1, len(start)):
        taps = offset[j + 1] - offset[j]
        fewest, most = min(fewest, taps), max(most, taps)
    return start.ctypes.data, offset.ctypes.data, rounded.ctypes.data, fewest, most, plain


@part
def _repeats(start, offset, bits, period, step, j):
    """Whether result j + period has the band of result j, `step` inputs on."""
    taps = offset[j + 1] - offset[j]
    other = j + period
    if start[other] - start[j] != step or offset[other + 1] - offset[other] != taps:
        return False
    same = True
    for k in range(taps):
        same &= bits[offset[j] + k] == bits[offset[other] + k]
    return same


@njit(_STEADY, nogil=True, cache=True)
def steady(start, offset, bits, period, step):
    """Return the first result and the end of the longest run around the middle that repeats."""
    compared = len(start) - period
    first = stop = compared // 2
    while first > 0 and _repeats(start, offset, bits, period, step, first - 1):
        first -= 1
    while stop < compared and _repeats(start, offset, bits, period, step, stop):
        stop += 1
    return first, stop + period


@part
def _lane(start, offset, channels, lane):
    """First element, taps and first weight of a lane; lanes beyond the end equal the last one."""
    output, channel = divmod(min(lane, len(start) * channels - 1), channels)
    taps = offset[output + 1] - offset[output]
    return start[output] * channels + channel, taps, offset[output]


@njit(_GROUP, nogil=True, cache=True)
def group(start, offset, bits, channels, base, data):
    """Fill the arrays of tables.Groups.

    Returns the greatest offset of a first tap, that of any tap, and the fewest taps.
    """
    groups, rows, lanes = data.shape
    farthest = reach = 0
    fewest = rows
    for g in range(groups):
        base[g], most, _ = _lane(start, offset, channels, g * lanes)
        for lane in range(1, lanes):
            first, taps, _ = _lane(start, offset, channels, g * lanes + lane)
            if taps and (first < base[g] or not most):
                base[g] = first
            most = max(most, taps)
        for lane in range(lanes):
            first, taps, weight = _lane(start, offset, channels, g * lanes + lane)
            place = first - base[g] if taps else 0
            data[g, 0, lane], data[g, 1, lane] = place, taps
            for k in range(rows - 2):
                data[g, k + 2, lane] = bits[weight + k] if k < taps else 0
            farthest, fewest = max(farthest, place), min(fewest, taps)
            reach = max(reach, place + max(taps - 1, 0) * channels)
    return farthest, reach, fewest


@njit(_WIDEST_SPAN, nogil=True, cache=True)
def widest_span(start, offset, tile):
    """Return the most inputs that the bands of a tile of results cover."""
    widest, outputs = 0, len(start)
    for first in range(0, outputs, tile):
        last = min(first + tile, outputs) - 1
        begin, end = start[first], start[last]
        past = begin + offset[first + 1] - offset[first]
        last_past = end + offset[last + 1] - offset[last]
        widest = max(widest, max(past, last_past) - min(begin, end))
    return widest
