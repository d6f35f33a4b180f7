"""Pictures of `gradwire explain` and `gradwire demo`. Needs matplotlib.

explain draws two panels for each axis, both with the inputs downward: the matrix of weights, with
the outputs at their coordinates, and each input's total weight, which is the gradient of ones.
"""

# matplotlib leaves keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import imread

from gradwire.cli.explain import AxisTable
from gradwire.tensors import Array

# Okabe and Ito's blue and vermilion, which people with any color vision tell apart.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "0.45"
# Weights up to which they are written into the matrix; inputs and outputs up to which each has a
# bar and a marker.
LEGIBLE, FEW = 130, 48


def draw(axes: Mapping[str, AxisTable], *, title: str, path: Path) -> None:
    """Write the picture of some axes, by their captions.

    The ending of path tells the format.
    """
    figure = Figure((12, 1 + 5 * len(axes)), layout="constrained")
    figure.suptitle(title, fontsize=13)
    parts = figure.subfigures(len(axes), squeeze=False)[:, 0]
    for part, (caption, axis) in zip(parts, axes.items(), strict=True):
        part.suptitle(caption, fontsize=11, color=GREY)
        matrix, totals = part.subplots(1, 2, width_ratios=(2, 1))
        cells = _draw_matrix(matrix, axis)
        part.colorbar(cells, ax=matrix).ax.set_title("weight", fontsize=9)
        _draw_totals(totals, axis)
    figure.savefig(path)


def _draw_matrix(plot: Axes, axis: AxisTable) -> LineCollection:
    """Draw a cell for each weight, darker for larger ones.

    Negative weights have another hue. Markers show the coordinates.
    """
    least, most = axis.weight.min(initial=0), axis.weight.max(initial=1e-30)
    used = axis.weight != 0
    rows, columns = axis.rows[used], axis.columns[used]
    cells = plot.hlines(
        columns,
        rows - 0.5,
        rows + 0.5,
        # In points, of which the plot has about 320.
        linewidths=max(1.0, 310 / axis.inputs),
        capstyle="butt",
        array=axis.weight[used],
        norm=TwoSlopeNorm(0, least, most) if least < 0 else Normalize(0, most),
        cmap="PuOr" if least < 0 else "viridis_r",
        rasterized=True,
    )
    if len(axis.weight) <= LEGIBLE:
        size = min(9.0, 300 / axis.outputs, 220 / axis.inputs)
        for output, input_, weight in zip(axis.rows, axis.columns, axis.weight, strict=True):
            dark = np.dot(cells.to_rgba(weight)[:3], (0.3, 0.59, 0.11)) < 0.55  # noqa: PLR2004
            style: Any = {"ha": "center", "va": "center", "size": size}
            plot.text(output, input_, f"{weight:.3g}", color="white" if dark else "black", **style)
    outputs, idle = np.arange(axis.outputs), np.flatnonzero(np.diff(axis.offset) == 0)
    places, label = axis.coordinates, "output; o: its coordinate"
    if places is None or axis.outputs > FEW:
        places, label = (outputs + 0.5) * axis.inputs / axis.outputs - 0.5, "output"
    else:
        shown = np.clip(places.astype(np.float64), -0.5, axis.inputs - 0.5)
        plot.plot(outputs - 0.42, shown, "o", mfc="w", mec="0.15", ms=4, clip_on=False)
    plot.plot(idle, places[idle], "X", color=VERMILION, ms=8 if axis.outputs <= FEW else 3)
    plot.set(xlim=(-0.5, axis.outputs - 0.5), ylim=(axis.inputs - 0.5, -0.5), facecolor="0.965")
    plot.set(xlabel=label, ylabel="input")
    plot.set_title("weights", fontsize=10)
    plot.locator_params(nbins=10, integer=True, min_n_ticks=1)
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
    plot.locator_params("y", nbins=10, integer=True, min_n_ticks=1)
    words = f"; no output reads {len(unread)} of them" if len(unread) else ""
    plot.set_title(f"total weight of each input{words}", fontsize=10)


# Ships with matplotlib as grace_hopper.jpg.
PHOTOGRAPH = "grace_hopper.jpg"
CREDIT = "Commodore Grace M. Hopper, by James S. Davis, U.S. Navy, 1984; public domain"
# The part shown enlarged: rows and columns of the photograph.
DETAIL = (slice(110, 330), slice(145, 385))


def photograph() -> Array:
    """Load the photograph as float32[1, 3, height, width], 0 to 1.

    It is cut to multiples of 4.
    """
    pixels = imread(str(cbook.get_sample_data(PHOTOGRAPH, asfileobj=False)))
    height, width = (size // 4 * 4 for size in pixels.shape[:2])
    planes = np.moveaxis(pixels[:height, :width], 2, 0)[np.newaxis]
    return np.ascontiguousarray(planes, np.float32) / np.float32(255)


def draw_demo(images: Mapping[str, Array], losses: Sequence[float], *, path: Path) -> None:
    """Write the demo's picture: images, details and losses.

    The titled images are as large as the last one.
    """
    figure = Figure((3.1 * len(images), 9.9), dpi=110, layout="constrained")
    figure.suptitle(
        "A photograph rebuilt from its 4x smaller copy, by gradients over gRPC", size=15
    )
    parts: Any = figure.subfigures(3, 1, height_ratios=(3.7, 2.9, 2.2))
    *shown, below = parts
    height = [*images.values()][-1].shape[2]
    tops, details = (part.subplots(1, len(images)) for part in shown)
    for top, detail, (title, image) in zip(tops, details, images.items(), strict=True):
        repeat = height // image.shape[2]
        pixels = np.clip(np.moveaxis(image[0], 0, 2), 0, 1).repeat(repeat, 0).repeat(repeat, 1)
        for plot, part in ((top, pixels), (detail, pixels[DETAIL])):
            plot.imshow(part, interpolation="none")
            plot.set_axis_off()
        top.set_title(title, fontsize=11)
    plot = below.subplots()
    plot.plot(losses, color=BLUE, linewidth=2)
    plot.set(xlabel="gradient step", ylabel="loss", ylim=(0, None))
    figure.supxlabel(f"{CREDIT}; sample data of matplotlib", fontsize=8, color="0.4")
    figure.savefig(path, format="png")
