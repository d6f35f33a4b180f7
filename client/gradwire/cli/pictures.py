"""Pictures of `gradwire explain` and `gradwire demo`. Needs matplotlib.

explain draws a row of three panels for each axis, all with the inputs downward: the outputs that
read each input, the matrix of weights, and each input's total weight, the result of a gradient of
ones.
"""

# matplotlib leaves keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from gradwire.cli.axis_tables import AxisTable, Indices, Weights

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
    """A figure whose coordinates are in inches."""

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
    parts = stretches(axis)
    plots = [page.plot(row, LINKS, part=part, parts=len(parts)) for part in range(len(parts))]
    draw_links(plots, axis, colors, parts)
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


INK = "0.15"

# Inputs up to which one plot shows them all; of more, three stretches from along the axis.
MOST_INPUTS = 30
STRETCH = 8

# Visible part of the axis beyond a stretch, in inputs.
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


def draw_links(
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


Pixels = npt.NDArray[np.floating[Any]]

# Ships with matplotlib as grace_hopper.jpg.
PHOTOGRAPH = "grace_hopper.jpg"
CREDIT = "Commodore Grace M. Hopper, by James S. Davis, U.S. Navy, 1984; public domain"

# The part shown enlarged: rows and columns of the photograph.
DETAIL = (slice(110, 330), slice(145, 385))


@dataclass(frozen=True, slots=True)
class Panel:
    """One image of the story; smaller ones are shown as large as the others."""

    title: str
    image: Pixels


def photograph() -> Pixels:
    """Load the photograph: float32[1, 3, height, width], 0 to 1, cut to multiples of 4."""
    path = str(cbook.get_sample_data(PHOTOGRAPH, asfileobj=False))
    pixels: npt.NDArray[np.uint8] = imread(path)
    height, width = (size // 4 * 4 for size in pixels.shape[:2])
    planes = np.moveaxis(pixels[:height, :width], 2, 0)[np.newaxis]
    return np.ascontiguousarray(planes, np.float32) / np.float32(255)


def draw_demo(panels: Sequence[Panel], losses: Sequence[float], *, path: Path) -> None:
    """Write the picture: the panels, a detail of each, and the loss after each step."""
    figure = Figure(figsize=(3.1 * len(panels), 9.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    title = "A photograph rebuilt from its 4x smaller copy, by gradients over gRPC"
    figure.suptitle(title, fontsize=15)
    grid = figure.add_gridspec(3, len(panels), height_ratios=(3.7, 2.9, 2.2))
    height = panels[-1].image.shape[2]
    for column, panel in enumerate(panels):
        pixels = _as_pixels(panel.image, height // panel.image.shape[2])
        whole = figure.add_subplot(grid[0, column])
        whole.set_title(panel.title, fontsize=11)
        _show(whole, pixels)
        _show(figure.add_subplot(grid[1, column]), pixels[DETAIL])
    _plot_loss(figure.add_subplot(grid[2, :]), losses)
    figure.supxlabel(f"{CREDIT}; sample data of matplotlib", fontsize=8, color="0.4")
    figure.savefig(path, format="png")


def _as_pixels(planes: Pixels, repeat: int) -> npt.NDArray[Any]:
    pixels: npt.NDArray[Any] = np.clip(np.moveaxis(planes[0], 0, 2), 0, 1)
    return pixels.repeat(repeat, axis=0).repeat(repeat, axis=1)


def _show(axes: Axes, pixels: npt.NDArray[Any]) -> None:
    axes.imshow(pixels, interpolation="none")
    axes.set_axis_off()


def _plot_loss(axes: Axes, losses: Sequence[float]) -> None:
    axes.plot(losses, color="tab:blue", linewidth=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("gradient step")
    axes.set_ylabel("loss")
    axes.grid(visible=True, color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
