"""Plans as the kernels see them: at most three passes on a tensor of five axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from gradwire_server.plans import BandedMap, Pass

# Fewer channels than this do not fill vectors.
FEW_CHANNELS = 16


class Form(NamedTuple):
    """A tensor seen as [outer, depth, height, width, channels]; None for an axis without a pass.

    Lengths are of the input; of an axis with a pass they are the map's.
    """

    outer: int
    depth: int
    height: int
    width: int
    channels: int
    depth_map: BandedMap | None
    height_map: BandedMap | None
    width_map: BandedMap | None

    @property
    def maps(self) -> tuple[BandedMap | None, ...]:
        """Of depth, height and width."""
        return self[5:]

    @property
    def inputs(self) -> int:
        """Numbers of the input."""
        return math.prod(self[:5])

    def steps(self, size: int, repeats: RepeatedAxes) -> tuple[int, int, int, int]:
        """Return the bytes of the input, of numbers of this size, without what repeats.

        Those from one outer index to the next, from plane to plane, from row to row, and of all.
        """
        row = self.width * self.channels * size
        plane = row * (1 if repeats.height else self.height)
        volume = plane * (1 if repeats.depth else self.depth)
        whole = volume * (1 if repeats.outer else self.outer)
        outer, depth, height = (
            0 if again else step for again, step in zip(repeats, (volume, plane, row), strict=True)
        )
        return outer, depth, height, whole


class RepeatedAxes(NamedTuple):
    """Whether all of outer, of depth and of height is one index again and again."""

    outer: bool
    depth: bool
    height: bool


NOTHING_REPEATS = RepeatedAxes(outer=False, depth=False, height=False)


def repeats_of(
    shape: Sequence[int], passes: Sequence[Pass], repeated: Sequence[bool]
) -> RepeatedAxes:
    """Tell what repeats in the form of a tensor, by which of its axes do."""
    return RepeatedAxes(
        *(
            any(repeated[axis] and shape[axis] > 1 for axis in axes)
            and all(repeated[axis] or shape[axis] == 1 for axis in axes)
            for axes in _axes_of(shape, passes)
        )
    )


def taken_of(
    shape: Sequence[int], passes: Sequence[Pass], repeats: RepeatedAxes
) -> tuple[slice, ...]:
    """Return the indices of a tensor that are all of it but for what repeats in its form."""
    slices = [slice(None)] * len(shape)
    for axes, is_repeated in zip(_axes_of(shape, passes), repeats, strict=True):
        for axis in axes if is_repeated else ():
            slices[axis] = slice(1)
    return tuple(slices)


def _axes_of(shape: Sequence[int], passes: Sequence[Pass]) -> tuple[range, range, range]:
    """Axes of a tensor that are outer, depth and height in form_of()."""
    axes = [one.axis for one in passes]
    first, last = axes[0], axes[-1]
    if len(axes) == 1:
        if math.prod(shape[first + 1 :]) >= FEW_CHANNELS:
            return range(first), range(0), range(first, first + 1)
        return range(0), range(0), range(first)
    if len(axes) == 2 and math.prod(shape[first + 1 : last]) == 1:
        return range(first), range(0), range(first, last)
    middle = axes[1] if len(axes) > 2 else first + 1
    return range(first), range(first, middle), range(middle, last)


def form_of(shape: Sequence[int], passes: Sequence[Pass]) -> Form | None:
    """See a tensor and passes in the kernel's form; None where that cannot be."""
    axes = [one.axis for one in passes]
    if not axes or len(axes) > 3 or axes != sorted(axes):
        return None
    outer = math.prod(shape[: axes[0]])
    between = [math.prod(shape[a + 1 : b]) for a, b in itertools.pairwise(axes)]
    inner = math.prod(shape[axes[-1] + 1 :])
    maps = [one.map for one in passes]
    lengths = [one.inputs for one in maps]
    form = None
    if len(axes) == 1 and inner >= FEW_CHANNELS:
        form = Form(outer, 1, lengths[0], inner, 1, None, maps[0], None)
    elif len(axes) == 1:
        form = Form(1, 1, outer, lengths[0], inner, None, None, maps[0])
    elif len(axes) == 2 and between[0] == 1:
        form = Form(outer, 1, lengths[0], lengths[1], inner, None, maps[0], maps[1])
    elif len(axes) == 2:
        form = Form(outer, lengths[0], between[0], lengths[1], inner, maps[0], None, maps[1])
    elif between == [1, 1]:
        depth, height, width = lengths
        form = Form(outer, depth, height, width, inner, maps[0], maps[1], maps[2])
    return form
