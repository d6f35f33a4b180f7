"""Counts of times in bins of three significant digits: HdrHistogram's bins and its encoding.

Bins, percentiles and the V2 encoding are those of HdrHistogram (Gil Tene; Java's AbstractHistogram
and EncodableHistogram), so that its tools read what is written here. Counts are a NumPy array,
since a benchmark records and merges a great many at a time.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

LOWEST_US: Final = 1
# An hour; what takes longer counts as that.
HIGHEST_US: Final = 3_600_000_000
DIGITS: Final = 3

# Linear bins within each power of two: enough for 3 digits, 2 * 10**3 rounded up to 2**11.
_MAGNITUDE: Final = 11
_HALF_MAGNITUDE: Final = _MAGNITUDE - 1
_HALF: Final = 1 << _HALF_MAGNITUDE
_BUCKETS: Final = HIGHEST_US.bit_length() - _MAGNITUDE + 1
_BINS: Final = (_BUCKETS + 1) * _HALF

# The last hexadecimal digit but one tells of a word of one byte: LEB128.
_COOKIE: Final = 0x1C849303 | 0x10
_COMPRESSED_COOKIE: Final = 0x1C849304 | 0x10
# Cookie, payload bytes, index offset, digits, lowest, highest, ratio of integers to doubles.
_HEADER: Final = struct.Struct(">iiiiqqd")
_COMPRESSED: Final = struct.Struct(">ii")

Counts = NDArray[np.int64]


class Histogram:
    """Times in microseconds, 1 to an hour.

    counts  int64[bins]
    """

    def __init__(self) -> None:
        self.counts: Counts = np.zeros(_BINS, np.int64)

    @classmethod
    def of(cls, times_us: ArrayLike) -> Self:
        """Make one of times."""
        made = cls()
        made.record(times_us)
        return made

    def record(self, times_us: ArrayLike) -> None:
        """Count times, rounded to whole microseconds."""
        rounded = np.clip(np.rint(np.asarray(times_us, np.float64)), LOWEST_US, HIGHEST_US)
        self.counts += np.bincount(_bins(rounded.astype(np.int64)), minlength=_BINS)

    def add(self, other: Histogram) -> None:
        """Count what another one has counted."""
        self.counts += other.counts

    @property
    def total(self) -> int:
        """How many times were recorded."""
        return int(self.counts.sum())

    def percentile(self, percent: float) -> float:
        """Return the time that so many percent do not exceed, in microseconds; 0 where none is."""
        cumulated = np.cumsum(self.counts)
        total = int(cumulated[-1])
        if not total:
            return 0.0
        rank = max(1, math.ceil(percent * total / 100))
        return float(_TIMES[np.searchsorted(cumulated, rank)])

    @property
    def mean_us(self) -> float:
        """Mean time in microseconds; 0 where none is."""
        filled = np.flatnonzero(self.counts)
        if not len(filled):
            return 0.0
        counts = self.counts[filled]
        return float(np.dot((_lowest(filled) + _highest(filled)) / 2, counts) / counts.sum())

    def corrected(self, interval_us: float) -> Histogram:
        """Return a copy with the times that callers would have seen who call so often.

        Of a time t longer than the interval there are besides t - interval, t - 2 intervals and so
        on, down to the interval. (copyCorrectedForCoordinatedOmission)
        """
        made = Histogram()
        made.add(self)
        step = round(interval_us)
        if step < LOWEST_US:
            return made
        for one in np.flatnonzero(self.counts):
            time = int(_TIMES[one])
            missing = np.arange(time - step, step - 1, -step)
            if len(missing):
                made.counts += self.counts[one] * np.bincount(_bins(missing), minlength=_BINS)
        return made

    def encode(self) -> str:
        """Encode as HdrHistogram's compressed V2, in base64."""
        filled = np.flatnonzero(self.counts)
        last = int(filled[-1]) + 1 if len(filled) else 0
        payload = b"".join(map(_zigzag, _runs(self.counts[:last].tolist())))
        header = _HEADER.pack(_COOKIE, len(payload), 0, DIGITS, LOWEST_US, HIGHEST_US, 1.0)
        packed = zlib.compress(header + payload)
        return base64.b64encode(_COMPRESSED.pack(_COMPRESSED_COOKIE, len(packed)) + packed).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Decode what encode() made; raise ValueError where it is anything else."""
        try:
            raw = base64.b64decode(text, validate=True)
            cookie, _ = _COMPRESSED.unpack_from(raw)
            data = zlib.decompress(raw[_COMPRESSED.size :])
            header = _HEADER.unpack_from(data)
        except (ValueError, zlib.error, struct.error) as error:
            raise ValueError(f"no histogram of HdrHistogram's V2 encoding: {error}") from None
        expected = (_COOKIE, header[1], 0, DIGITS, LOWEST_US, HIGHEST_US, 1.0)
        if cookie != _COMPRESSED_COOKIE or header != expected:
            raise ValueError("a histogram of other bins than 1 us to an hour with 3 digits")
        made = cls()
        at = 0
        for number in _unzigzag(data[_HEADER.size :]):
            if number < 0:
                at -= number
            else:
                made.counts[at] = number
                at += 1
        return made


def _bins(times_us: NDArray[np.int64]) -> NDArray[np.int64]:
    bits = np.frexp((times_us | (2 * _HALF - 1)).astype(np.float64))[1].astype(np.int64)
    bucket = bits - _MAGNITUDE
    inside: NDArray[np.int64] = (times_us >> bucket) - _HALF
    return ((bucket + 1) << _HALF_MAGNITUDE) + inside


def _lowest(bins: Counts) -> Counts:
    """Return the least time of bins."""
    bucket = _bucket(bins)
    lowest: Counts = (bins - (bucket << _HALF_MAGNITUDE)) << bucket
    return lowest


def _highest(bins: Counts) -> Counts:
    """Return the greatest time of bins."""
    highest: Counts = _lowest(bins) + (1 << _bucket(bins)) - 1
    return highest


def _bucket(bins: Counts) -> Counts:
    bucket: Counts = np.maximum((bins >> _HALF_MAGNITUDE) - 1, 0)
    return bucket


def _runs(counts: list[int]) -> Iterable[int]:
    """Yield counts; of zeros side by side how many they are, negative."""
    zeros = 0
    for count in counts:
        if count == 0:
            zeros += 1
            continue
        if zeros:
            yield -zeros
            zeros = 0
        yield count


def _zigzag(number: int) -> bytes:
    """Encode a number in seven bits to a byte, its sign in the lowest."""
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:  # noqa: PLR2004 - seven bits
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _unzigzag(data: bytes) -> Iterable[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - a byte without the bit that says that more follow
            yield (number >> 1) ^ -(number & 1)
            number = shift = 0


# The greatest time of every bin: which one a count stands for.
_TIMES: Final = _highest(np.arange(_BINS))
