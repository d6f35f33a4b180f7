"""The picture of `gradwire explain`: a row of three panels for each axis. Needs matplotlib.

All panels of a row have the inputs downward: which outputs read each input, the matrix of weights,
and each input's total weight, which is what a gradient of ones gives.
"""

# matplotlib leaves keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from gradwire.cli import links
from gradwire.cli.tables import AxisTable, Weights

# Okabe and Ito's blue and vermilion, which people with any color vision tell apart.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "0.45"

# In inches: the picture's width, the heights of its heading and of a row, and within a row those of
# the space over the panels, of the panels, and of the gaps between parts of a panel.
WIDTH, HEADING, ROW, CAPTION, PANEL, GAP = 15.0, 0.7, 5.7, 0.55, 4.4, 0.2

# Left edge and width of each panel, in inches.
Place = tuple[float, float]
LINKS, MATRIX, COLORS, TOTALS = (0.2, 3.9), (4.9, 5.2), (10.25, 0.2), (11.9, 2.8)

# Elements of an axis up to which each one has a bar of its own.
FEW = 48

# Weights up to which they are written into their cells.
LEGIBLE = 130

# Rows and columns that a matrix is drawn with at most: each then has some pixels.
MOST_CELLS = 160

# Weights darker than this, from 0 to 1, have white writing.
DARK = 0.55


def draw(axes: Sequence[tuple[str, AxisTable]], *, title: str, path: Path) -> None:
    """Write the picture of some axes, each with its caption, in the format of the path's ending."""
    page = _Page(len(axes))
    page.figure.text(0.5, 1 - HEADING / 2 / page.height, title, ha="center", va="center", size=13)
    for row, (caption, axis) in enumerate(axes):
        _draw_axis(page, row, caption, axis)
    page.save(path)


def color_scale(weights: Weights) -> ScalarMappable:
    """Return darker colors for larger weights; where some are negative, in two hues by the root.

    Negative weights are small beside the others, and would be too faint to be seen.
    """
    most = max(1e-30, float(np.abs(weights).max(initial=0)))
    if weights.min(initial=0) < 0:
        return ScalarMappable(FuncNorm((_root, _square), -most, most), "PuOr")
    return ScalarMappable(Normalize(0, most), "viridis_r")


def _root(weights: Weights) -> Weights:
    root: Weights = np.sign(weights) * np.sqrt(np.abs(weights))
    return root


def _square(roots: Weights) -> Weights:
    square: Weights = np.sign(roots) * np.square(roots)
    return square


class _Page:
    """A figure whose places are told in inches."""

    def __init__(self, rows: int) -> None:
        self.height = HEADING + ROW * rows
        self.figure = Figure(figsize=(WIDTH, self.height), dpi=100)
        FigureCanvasAgg(self.figure)

    def save(self, path: Path) -> None:
        """Write the picture in the format of the path's ending."""
        if path.suffix.lower() != ".png":
            self.figure.savefig(path)
            return
        pixels = io.BytesIO()
        self.figure.savefig(pixels, format="png")
        # A palette takes a quarter of the bytes; this one keeps the scales smooth.
        image = Image.open(pixels).convert("RGB")
        method = Image.Quantize.MAXCOVERAGE
        image.quantize(method=method, dither=Image.Dither.NONE).save(path, optimize=True)

    def plot(self, row: int, place: Place, *, part: int = 0, parts: int = 1) -> Axes:
        """Return axes in one of the parts, counted downward, of a panel."""
        left, width = place
        size = (PANEL - GAP * (parts - 1)) / parts
        top = HEADING + ROW * row + CAPTION + (size + GAP) * part
        bottom = 1 - (top + size) / self.height
        box = (left / WIDTH, bottom, width / WIDTH, size / self.height)
        return self.figure.add_axes(box)

    def caption(self, row: int, text: str) -> None:
        """Write above a row."""
        height = 1 - (HEADING + ROW * row + 0.12) / self.height
        self.figure.text(0.5, height, text, ha="center", va="center", size=11, color=GREY)


def _draw_axis(page: _Page, row: int, caption: str, axis: AxisTable) -> None:
    page.caption(row, caption)
    colors = color_scale(axis.weight)
    stretches = links.stretches(axis)
    plots = [
        page.plot(row, LINKS, part=part, parts=len(stretches)) for part in range(len(stretches))
    ]
    links.draw(plots, axis, colors, stretches)
    _draw_matrix(page.plot(row, MATRIX), axis, colors)
    page.figure.colorbar(colors, cax=page.plot(row, COLORS)).ax.set_title("weight", fontsize=9)
    _draw_totals(page.plot(row, TOTALS), axis)


def _draw_matrix(plot: Axes, axis: AxisTable, colors: ScalarMappable) -> None:
    height, width = (-(-length // MOST_CELLS) for length in (axis.inputs, axis.outputs))
    rows, columns = -(-axis.inputs // height), -(-axis.outputs // width)
    cells = np.full((rows, columns), np.nan)
    # Of the weights in one cell the largest is written last, and stays.
    order = np.argsort(np.abs(axis.weight), kind="stable")
    cells[axis.columns[order] // height, axis.rows[order] // width] = axis.weight[order]
    cells[cells == 0] = np.nan
    plot.imshow(
        colors.to_rgba(cells),
        aspect="auto",
        interpolation="none",
        extent=(-0.5, columns * width - 0.5, rows * height - 0.5, -0.5),
    )
    plot.set_xlim(-0.5, axis.outputs - 0.5)
    plot.set_ylim(axis.inputs - 0.5, -0.5)
    whole = height == width == 1
    if whole and max(rows, columns) <= FEW and len(axis.weight) <= LEGIBLE:
        _write_weights(plot, axis, colors)
    plot.set_facecolor("0.965")
    words = "weights" if whole else f"weights, the largest of each {height} x {width}"
    plot.set_title(words, fontsize=10)
    plot.set_xlabel("output")
    plot.set_ylabel("input")
    for ruler in (plot.xaxis, plot.yaxis):
        ruler.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))


def _write_weights(plot: Axes, axis: AxisTable, colors: ScalarMappable) -> None:
    texts = [f"{weight:.3g}" for weight in axis.weight]
    # In points; a digit is about 0.65 of its height wide.
    widest = 0.65 * max(map(len, texts), default=1)
    size = min(9.0, 72 * MATRIX[1] / axis.outputs / widest, 220 / axis.inputs)
    for output, input_, weight, text in zip(
        axis.rows, axis.columns, axis.weight, texts, strict=True
    ):
        red, green, blue, _ = colors.to_rgba(weight)
        luminance = 0.3 * red + 0.59 * green + 0.11 * blue
        ink = "white" if luminance < DARK and weight else "black"
        plot.text(output, input_, text, ha="center", va="center", fontsize=size, color=ink)


def _draw_totals(plot: Axes, axis: AxisTable) -> None:
    totals, unread = axis.totals, axis.unread
    few = axis.inputs <= FEW
    if few:
        plot.barh(np.arange(axis.inputs), totals, height=0.72, color=BLUE)
    else:
        place, parts = _in_parts(totals, MOST_CELLS)
        low, high = ([of(part) for part in parts] for of in (np.min, np.max))
        plot.fill_betweenx(place, low, high, color=BLUE, alpha=0.25, linewidth=0)
        place, parts = _in_parts(totals, MOST_CELLS // 4)
        plot.plot([part.mean() for part in parts], place, color=BLUE, linewidth=1.8)
    plot.axvline(axis.outputs / axis.inputs, color=GREY, linewidth=1, linestyle="--", zorder=0)
    plot.axvline(0, color="black", linewidth=0.8)
    plot.plot(unread * 0, unread, "x", color=VERMILION, ms=6 if few else 1.5, clip_on=False)
    plot.set_ylim(axis.inputs - 0.5, -0.5)
    plot.margins(x=0.08)
    plot.yaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
    plot.xaxis.set_major_locator(MaxNLocator(4))
    plot.xaxis.set_major_formatter("{x:.3g}")
    plot.set_xlabel("total weight; dashed: outputs / inputs")
    plot.set_ylabel("input")
    words = "total weight of each input" if few else "total weight: mean and range"
    if len(unread):
        words = f"no output reads {len(unread)} of {axis.inputs} inputs"
    plot.set_title(words, fontsize=10, color=VERMILION if len(unread) else "black")
    plot.spines[["top", "right"]].set_visible(False)


def _in_parts(totals: Weights, count: int) -> tuple[list[float], list[Weights]]:
    """Split into at most `count` parts of neighbors; return the middle of each, and the parts."""
    parts = np.array_split(totals, min(len(totals), count))
    places = np.array_split(np.arange(len(totals)), len(parts))
    return [float(part.mean()) for part in places], parts
