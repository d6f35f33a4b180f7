"""The demo's photograph, and the picture that tells its story. Needs matplotlib."""

# matplotlib leaves keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import cbook, image
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradwire.demo import Image

# Ships with matplotlib as grace_hopper.jpg.
PHOTOGRAPH = "grace_hopper.jpg"
CREDIT = "Commodore Grace M. Hopper, by James S. Davis, U.S. Navy, 1984; public domain"

# The part shown enlarged: rows and columns of the photograph.
DETAIL = (slice(110, 330), slice(145, 385))


@dataclass(frozen=True, slots=True)
class Panel:
    """One image of the story; smaller ones are shown as large as the others."""

    title: str
    image: Image


def photograph() -> Image:
    """Load the photograph: float32[1, 3, height, width], 0 to 1, cut to multiples of 4."""
    path = str(cbook.get_sample_data(PHOTOGRAPH, asfileobj=False))
    pixels: npt.NDArray[np.uint8] = image.imread(path)
    height, width = (size // 4 * 4 for size in pixels.shape[:2])
    planes = np.moveaxis(pixels[:height, :width], 2, 0)[np.newaxis]
    return np.ascontiguousarray(planes, np.float32) / np.float32(255)


def draw(panels: Sequence[Panel], losses: Sequence[float], *, path: Path) -> None:
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


def _as_pixels(planes: Image, repeat: int) -> npt.NDArray[Any]:
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
