"""Pictures of `gradwire explain` and `gradwire demo`. Needs matplotlib.

explain draws two panels for each axis, both with the inputs downward: the matrix of weights, with
the outputs at their coordinates, and each input's total weight, which is the gradient of ones.
"""

# matplotlib leaves keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.image import imread

from gradwire.cli.explain import AxisTable
from gradwire.tensors import Array

# Okabe and Ito's blue.
BLUE, GREY = "#0072B2", "0.45"
# Weights up to which they are written into the matrix, with markers at the outputs' coordinates.
LEGIBLE = 48


def draw(axes: Mapping[str, AxisTable], *, title: str, path: Path) -> None:
    """Write the picture of some axes, by their captions.

    The ending of path tells the format.
    """
    figure = Figure((12, 1 + 5 * len(axes)), layout="constrained")
    figure.suptitle(title, fontsize=13)
    plots = figure.subplots(len(axes), 2, squeeze=False, sharey="row", width_ratios=(2, 1))
    for (matrix, totals), (caption, axis) in zip(plots, axes.items(), strict=True):
        matrix.set_title(caption)
        bar = figure.colorbar(_draw_matrix(matrix, axis), ax=matrix, label="weight")
        bar.ax.set_ylim(axis.weight.min(initial=0))
        _draw_totals(totals, axis)
    figure.savefig(path)


def _draw_matrix(plot: Axes, axis: AxisTable) -> LineCollection:
    """Draw a cell for each weight, darker for larger ones.

    Negative weights have another hue. Markers show the coordinates.
    """
    cells = plot.hlines(
        axis.columns,
        axis.rows - 0.5,
        axis.rows + 0.5,
        # In points, of which the plot has about 320.
        linewidths=max(1.0, 310 / axis.inputs),
        capstyle="butt",
        # Pale, so that numbers are legible on it.
        alpha=0.5,
        array=axis.weight,
        norm=CenteredNorm(halfrange=np.abs(axis.weight).max(initial=1e-30)),
        cmap="PuOr",
        rasterized=True,
    )
    label = "output"
    if len(axis.weight) <= LEGIBLE:
        for output, input_, weight in zip(axis.rows, axis.columns, axis.weight, strict=True):
            plot.text(output, input_, f"{weight:.3g}", ha="center", va="center", size=7)
        if axis.coordinates is not None:
            label = "output; o: its coordinate"
            places = np.clip(axis.coordinates, -0.5, axis.inputs - 0.5)
            plot.plot(
                np.arange(axis.outputs) - 0.42,
                places,
                "o",
                mfc="w",
                mec="0.15",
                ms=4,
                clip_on=False,
            )
    plot.set(xlim=(-0.5, axis.outputs - 0.5), ylim=(axis.inputs - 0.5, -0.5))
    plot.set(xlabel=label, ylabel="input")
    plot.locator_params(nbins=10, integer=True, min_n_ticks=1)
    return cells


def _draw_totals(plot: Axes, axis: AxisTable) -> None:
    edges = np.arange(axis.inputs + 1) - 0.5
    plot.stairs(axis.totals, edges, orientation="horizontal", fill=True, color=BLUE)
    # The mean, if every output's weights have the sum 1.
    plot.axvline(axis.outputs / axis.inputs, color=GREY, linestyle="--")
    plot.set(title="total weight of each input", xlabel="total weight; dashed: outputs / inputs")


# Ships with matplotlib as grace_hopper.jpg.
PHOTOGRAPH = "grace_hopper.jpg"
CREDIT = "Commodore Grace M. Hopper, by James S. Davis, U.S. Navy, 1984; public domain"
# The part shown enlarged: columns and rows of the photograph.
DETAIL = {"xlim": (145, 385), "ylim": (330, 110)}


def photograph() -> Array:
    """Load the photograph as float32[1, 3, height, width], 0 to 1."""
    pixels = imread(str(cbook.get_sample_data(PHOTOGRAPH, asfileobj=False)))
    planes = np.moveaxis(pixels, 2, 0)[np.newaxis]
    return np.ascontiguousarray(planes, np.float32) / np.float32(255)


def draw_demo(images: Mapping[str, Array], *, path: Path) -> None:
    """Write the demo's picture: titled images and details.

    They are shown as large as the last one.
    """
    figure = Figure((3.1 * len(images), 7.5), dpi=110, layout="constrained")
    figure.suptitle(
        "A photograph rebuilt from its 4x smaller copy, by gradients over gRPC", size=15
    )
    height, width = [*images.values()][-1].shape[2:]
    plots = figure.subplots(2, len(images)).T
    for (whole, detail), (title, image) in zip(plots, images.items(), strict=True):
        pixels = np.clip(np.moveaxis(image[0], 0, 2), 0, 1)
        for plot in (whole, detail):
            plot.imshow(pixels, interpolation="none", extent=(0, width, height, 0))
            plot.set_axis_off()
        whole.set_title(title, fontsize=11)
        detail.set(**DETAIL)
    figure.supxlabel(f"{CREDIT}; sample data of matplotlib", fontsize=8, color="0.4")
    figure.savefig(path, format="png")
