"""Pictures of `gradwire explain` and `gradwire demo`. Needs matplotlib.

explain draws a row of three panels for each axis, all with the inputs downward: the outputs that
read each input, the matrix of weights, and each input's total weight, which is the gradient of
ones.
"""

# matplotlib leaves keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.ticker import MaxNLocator

from gradwire.cli.explain import AxisTable

# Okabe and Ito's blue and vermilion, which people with any color vision tell apart.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "0.45"
# Inputs up to which one plot shows all of them with their outputs; of more inputs it shows three
# stretches.
MOST_INPUTS, STRETCH = 30, 8
# Weights up to which they are written into the matrix; inputs up to which each has a bar.
LEGIBLE, FEW = 130, 48
# Elements with a number on each side of a plot.
NUMBERED = 30


def draw(captioned: Iterable[tuple[str, AxisTable]], *, title: str, path: Path) -> None:
    """Write the picture of some axes, each with its caption.

    The ending of path tells the format.
    """
    axes = list(captioned)
    figure = Figure((15, 1 + 5 * len(axes)), layout="constrained")
    figure.suptitle(title, fontsize=13)
    parts = figure.subfigures(len(axes), squeeze=False)[:, 0]
    for part, (caption, axis) in zip(parts, axes, strict=True):
        part.suptitle(caption, fontsize=11, color=GREY)
        starts = (0, (axis.inputs - STRETCH) // 2, axis.inputs - STRETCH)
        stretches = [(start, start + STRETCH) for start in starts]
        if axis.inputs <= MOST_INPUTS:
            stretches = [(0, axis.inputs)]
        grid = part.add_gridspec(len(stretches), 3, width_ratios=(4, 5.5, 3))
        matrix = part.add_subplot(grid[:, 1])
        cells = _draw_matrix(matrix, axis)
        part.colorbar(cells, ax=matrix).ax.set_title("weight", fontsize=9)
        for row, (first, stop) in enumerate(stretches):
            _draw_links(part.add_subplot(grid[row, 0]), axis, cells, first, stop)
        _draw_totals(part.add_subplot(grid[:, 2]), axis)
    figure.savefig(path)


def _draw_links(plot: Axes, axis: AxisTable, colors: LineCollection, first: int, stop: int) -> None:
    """Draw inputs first .. stop - 1 with outputs that read them.

    The inputs are at the right.
    """
    places, where = axis.coordinates, "at its coordinate"
    if places is None:
        places = (np.arange(axis.outputs) + 0.5) * axis.inputs / axis.outputs - 0.5
        where = "by its index"
    top, bottom = first - 0.9, stop - 0.1
    places = np.clip(places.astype(np.float64), top, bottom)
    read = (axis.columns >= first) & (axis.columns < stop) & (axis.weight != 0)
    # The heaviest weight is drawn last, on top.
    chosen = np.flatnonzero(read)[np.argsort(np.abs(axis.weight[read]), kind="stable")]
    weights = axis.weight[chosen]
    ends = np.zeros((len(chosen), 2, 2))
    ends[:, 1, 0] = 1
    ends[:, :, 1] = np.stack([places[axis.rows[chosen]], axis.columns[chosen]], 1)
    widths = 0.8 + 2.2 * np.abs(weights) / np.abs(axis.weight).max(initial=1e-30)
    lines = LineCollection(list(ends), colors=colors.to_rgba(weights), linewidths=widths)
    plot.add_collection(lines)
    outputs = np.flatnonzero((places > top) & (places < bottom) | (stop - first == axis.inputs))
    inputs, at = np.arange(first, stop), places[outputs]
    plot.plot(outputs * 0, at, "o", inputs * 0 + 1, inputs, "s", color="0.15", ms=4.5)
    for side, odd in (
        (0, at[np.diff(axis.offset)[outputs] == 0]),
        (1, np.intersect1d(inputs, axis.unread)),
    ):
        plot.plot(odd * 0 + side, odd, "X", color=VERMILION, ms=8)
    every = max(1, len(outputs) // NUMBERED)
    plot.set_yticks(at[::every], map(str, outputs[::every]))
    plot.twinx().set(ylim=(bottom, top), yticks=inputs, frame_on=False)
    plot.set(xlim=(-0.1, 1.1), ylim=(bottom, top), frame_on=False)
    plot.set_xticks((0, 1), (f"output\n({where})", "input") if stop == axis.inputs else ("", "..."))
    plot.set_title("" if first else "which outputs read each input", fontsize=10)


def _draw_matrix(plot: Axes, axis: AxisTable) -> LineCollection:
    """Draw a cell for each weight, darker for larger ones.

    Negative weights have another hue.
    """
    least, most = axis.weight.min(initial=0), axis.weight.max(initial=1e-30)
    used = axis.weight != 0
    ends = np.repeat(axis.columns[used], 4).reshape(-1, 2, 2).astype(np.float64)
    ends[:, :, 0] = np.stack([axis.rows[used] - 0.5, axis.rows[used] + 0.5], 1)
    cells = LineCollection(
        list(ends),
        # In points, of which the plot has about 320.
        linewidths=max(1.0, 310 / axis.inputs),
        capstyle="butt",
        array=axis.weight[used],
        norm=TwoSlopeNorm(0, least, most) if least < 0 else Normalize(0, most),
        cmap="PuOr" if least < 0 else "viridis_r",
        rasterized=True,
    )
    plot.add_collection(cells)
    if len(axis.weight) <= LEGIBLE:
        size = min(9.0, 300 / axis.outputs, 220 / axis.inputs)
        for output, input_, weight in zip(axis.rows, axis.columns, axis.weight, strict=True):
            dark = np.dot(cells.to_rgba(weight)[:3], (0.3, 0.59, 0.11)) < 0.55  # noqa: PLR2004
            style: Any = {"ha": "center", "va": "center", "size": size}
            plot.text(output, input_, f"{weight:.3g}", color="white" if dark else "black", **style)
    plot.set(xlim=(-0.5, axis.outputs - 0.5), ylim=(axis.inputs - 0.5, -0.5), facecolor="0.965")
    plot.set(xlabel="output", ylabel="input")
    plot.set_title("weights", fontsize=10)
    for ruler in (plot.xaxis, plot.yaxis):
        ruler.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
    return cells


def _draw_totals(plot: Axes, axis: AxisTable) -> None:
    places, unread = np.arange(axis.inputs), axis.unread
    if axis.inputs <= FEW:
        plot.barh(places, axis.totals, height=0.72, color=BLUE)
    else:
        plot.plot(axis.totals, places, color=BLUE, linewidth=0.8)
    plot.axvline(axis.outputs / axis.inputs, color=GREY, linewidth=1, linestyle="--", zorder=0)
    plot.axvline(0, color="black", linewidth=0.8)
    plot.plot(unread * 0, unread, "x", color=VERMILION, ms=6 if axis.inputs <= FEW else 1.5)
    plot.set(ylim=(axis.inputs - 0.5, -0.5), ylabel="input")
    plot.set_xlabel("total weight; dashed: outputs / inputs")
    plot.yaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
    words, color = "total weight of each input", "black"
    if len(unread):
        words, color = f"no output reads {len(unread)} of {axis.inputs} inputs", VERMILION
    plot.set_title(words, fontsize=10, color=color)


Pixels = npt.NDArray[np.floating[Any]]

# Ships with matplotlib as grace_hopper.jpg.
PHOTOGRAPH = "grace_hopper.jpg"
CREDIT = "Commodore Grace M. Hopper, by James S. Davis, U.S. Navy, 1984; public domain"
# The part shown enlarged: rows and columns of the photograph.
DETAIL = (slice(110, 330), slice(145, 385))


def photograph() -> Pixels:
    """Load the photograph as float32[1, 3, height, width], 0 to 1.

    It is cut to multiples of 4.
    """
    pixels = imread(str(cbook.get_sample_data(PHOTOGRAPH, asfileobj=False)))
    height, width = (size // 4 * 4 for size in pixels.shape[:2])
    planes = np.moveaxis(pixels[:height, :width], 2, 0)[np.newaxis]
    return np.ascontiguousarray(planes, np.float32) / np.float32(255)


def draw_demo(images: Mapping[str, Pixels], losses: Sequence[float], *, path: Path) -> None:
    """Write the demo's picture: images, details and losses.

    The titled images are as large as the last one.
    """
    figure = Figure((3.1 * len(images), 9.9), dpi=110, layout="constrained")
    figure.suptitle(
        "A photograph rebuilt from its 4x smaller copy, by gradients over gRPC", size=15
    )
    grid = figure.add_gridspec(3, len(images), height_ratios=(3.7, 2.9, 2.2))
    height = [*images.values()][-1].shape[2]
    for column, (title, image) in enumerate(images.items()):
        repeat = height // image.shape[2]
        pixels = np.clip(np.moveaxis(image[0], 0, 2), 0, 1).repeat(repeat, 0).repeat(repeat, 1)
        for row, part in enumerate((pixels, pixels[DETAIL])):
            plot = figure.add_subplot(grid[row, column])
            plot.imshow(part, interpolation="none")
            plot.set_axis_off()
            if row == 0:
                plot.set_title(title, fontsize=11)
    plot = figure.add_subplot(grid[2, :])
    plot.plot(losses, color=BLUE, linewidth=2)
    plot.set(xlabel="gradient step", ylabel="loss", ylim=(0, None))
    plot.grid(visible=True, color="0.9")
    plot.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(f"{CREDIT}; sample data of matplotlib", fontsize=8, color="0.4")
    figure.savefig(path, format="png")
