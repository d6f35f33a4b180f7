"""The panel of `gradwire explain` that joins each output to the inputs it reads."""

# matplotlib leaves keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from gradwire.cli.tables import AxisTable, Indices

# The second is Okabe and Ito's, which people with any color vision tell from the first.
INK, VERMILION = "0.15", "#D55E00"

# Inputs up to which one plot shows them all; of more, three stretches from along the axis.
MOST_INPUTS = 30
STRETCH = 8

# What is seen of the axis beyond a stretch's first and last input, in inputs.
MARGIN = 0.9

# Outputs from beyond a stretch up to which they are drawn at its edge.
FEW_BEYOND = 4

# Between the numbers of two elements, in inches.
APART = 0.11


@dataclass(frozen=True, slots=True)
class Stretch:
    """Inputs first .. stop - 1 of an axis."""

    first: int
    stop: int


def stretches(axis: AxisTable) -> list[Stretch]:
    """Return all inputs of a short axis; the beginning, the middle and the end of a long one."""
    if axis.inputs <= MOST_INPUTS:
        return [Stretch(0, axis.inputs)]
    starts = (0, (axis.inputs - STRETCH) // 2, axis.inputs - STRETCH)
    return [Stretch(start, start + STRETCH) for start in starts]


def draw(
    plots: Sequence[Axes], axis: AxisTable, colors: ScalarMappable, parts: Sequence[Stretch]
) -> None:
    """Draw each stretch with the outputs that read it."""
    for plot, part in zip(plots, parts, strict=True):
        top, bottom = part.first - MARGIN, part.stop - 1 + MARGIN
        plot.set_xlim(-0.2, 1.2)
        plot.set_ylim(bottom, top)
        place = np.clip(_positions(axis), top, bottom)
        outputs = _join(plot, axis, colors, part, place)
        _draw_side(plot, 0, place, outputs, marked=np.diff(axis.offset) == 0)
        every = np.arange(axis.inputs)
        chosen = every[part.first : part.stop]
        _draw_side(plot, 1, every, chosen, marked=np.isin(every, axis.unread))
        plot.set_xticks(())
        plot.set_yticks(())
        plot.spines[["top", "left", "bottom", "right"]].set_visible(False)
    plots[0].set_title("which outputs read each input", fontsize=10)
    where = "by its index" if axis.coordinates is None else "at its coordinate"
    plots[-1].set_xticks((0, 1), (f"output\n({where})", "input"))
    plots[-1].tick_params(length=0)
    for plot in plots[1:]:
        plot.text(1, plot.get_ylim()[1], "...", ha="center", va="bottom", color=INK)


def _positions(axis: AxisTable) -> NDArray[np.float64]:
    """Return where along the inputs each output stands."""
    if axis.coordinates is not None:
        return axis.coordinates.astype(np.float64)
    return (np.arange(axis.outputs) + 0.5) * axis.inputs / axis.outputs - 0.5


def _join(
    plot: Axes,
    axis: AxisTable,
    colors: ScalarMappable,
    part: Stretch,
    place: NDArray[np.float64],
) -> Indices:
    """Draw lines from outputs to the inputs they read; return the outputs to be drawn."""
    read = (axis.columns >= part.first) & (axis.columns < part.stop) & (axis.weight != 0)
    # The heaviest last, on top.
    chosen = np.flatnonzero(read)[np.argsort(np.abs(axis.weight[read]), kind="stable")]
    weights, outputs = axis.weight[chosen], axis.rows[chosen]
    left, right = np.zeros(len(chosen)), np.ones(len(chosen))
    ends = np.stack([left, place[outputs], right, axis.columns[chosen]], 1)
    heavy = np.abs(weights) / max(1e-30, float(np.abs(axis.weight).max(initial=0)))
    lines = LineCollection(
        list(ends.reshape(-1, 2, 2)), colors=colors.to_rgba(weights), linewidths=0.8 + 2.2 * heavy
    )
    plot.add_collection(lines)
    if part.stop - part.first == axis.inputs:
        return np.arange(axis.outputs)
    bottom, top = plot.get_ylim()
    inside = np.flatnonzero((place > top) & (place < bottom))
    beyond = np.setdiff1d(outputs, inside)
    return np.union1d(inside, beyond) if len(beyond) <= FEW_BEYOND else inside


def _draw_side(
    plot: Axes,
    side: int,
    place: NDArray[Any],
    chosen: Indices,
    *,
    marked: NDArray[np.bool_],
) -> None:
    """Draw outputs at 0 or inputs at 1, numbered; those that are marked stand out."""
    odd, even = chosen[marked[chosen]], chosen[~marked[chosen]]
    at = np.full(len(place), side)
    plot.plot(at[even], place[even], "s" if side else "o", color=INK, ms=4.5, clip_on=False)
    plot.plot(
        at[odd], place[odd], "x" if side else "o", color=VERMILION, ms=6, mfc="none", clip_on=False
    )
    span = abs(np.subtract(*plot.get_ylim()))
    apart = APART * span * plot.figure.dpi / plot.bbox.height
    last = -math.inf
    for number in chosen.tolist():
        if abs(float(place[number]) - last) >= apart:
            last = float(place[number])
            color = VERMILION if marked[number] else INK
            x, align = (1.06, "left") if side else (-0.06, "right")
            plot.text(x, last, str(number), ha=align, va="center", size=8, color=color)
