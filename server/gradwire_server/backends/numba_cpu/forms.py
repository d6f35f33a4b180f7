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
