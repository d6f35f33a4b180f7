"""Picture of the GPU benchmark's results.

    python -m benchmarks gpu-plot out/gpu.json out/gpu.png

Needs matplotlib.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gpu import report
from benchmarks.gpu.costs import Cost
from benchmarks.gpu.report import GpuRecord

_COLORS = {
    "ours": "#2a6fbb",
    "copy": "#888888",
    "torch": "#d9822b",
    "deterministic": "#a8323e",
    "cuda": "#2a6fbb",
    "numba_cpu": "#d9822b",
    "numpy_cpu": "#888888",
}
_MARKS = {"copy": "|", "torch": "o", "deterministic": "d"}


def rates(axes: Any, records: Sequence[GpuRecord], *, title: str) -> None:
    """Draw a line per case: bars are ours, marks the others."""
    places = range(len(records))
    axes.barh(
        places,
        [record.rate("ours") or 0 for record in records],
        color=_COLORS["ours"],
        label="ours",
        height=0.55,
    )
    for name, mark in _MARKS.items():
        known = [(place, record.rate(name)) for place, record in enumerate(records)]
        some = [(rate, place) for place, rate in known if rate]
        axes.scatter(
            [rate for rate, _ in some],
            [place for _, place in some],
            s=26,
            c=_COLORS[name],
            marker=mark,
            label=name,
        )
    axes.set_yticks(places, [record.case for record in records], fontsize=7)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("GB/s on the device, read and written")
    axes.legend(fontsize=7)


def calls(axes: Any, costs: Sequence[Cost], *, way: str) -> None:
    """Draw milliseconds of a call by its size."""
    some = [cost for cost in costs if cost.way == way]
    for name in some[0].seconds if some else ():
        axes.plot(
            [cost.nbytes for cost in some],
            [cost.median_ms(name) for cost in some],
            marker=".",
            label=name,
            color=_COLORS.get(name),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes of the output gradient, bilinear x2, float32")
    axes.set_ylabel("ms")
    axes.set_title(f"{way}, host memory to host memory", fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)


def draw(found: dict[str, Any], picture: Path) -> None:
    """Draw the content of a benchmark's JSON file."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    records = report.load(found)
    costs = [Cost(**one) for one in found["costs"]]
    kinds = list(product(("float32", "float16", "bfloat16"), ("NCX", "NXC")))
    figure, axes = pyplot.subplots(4, 2, figsize=(13, 22), height_ratios=[3, 3, 3, 2])
    for place, (dtype, layout) in zip(axes.flat, kinds, strict=False):
        some = [one for one in records if (one.dtype, one.layout) == (dtype, layout)]
        rates(place, some, title=f"{dtype} {layout}, {found['device']}")
    for place, way in zip(axes[3], ("apply", "request"), strict=True):
        calls(place, costs, way=way)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Draw the picture."""
    parser = machine.parser("gpu-plot", __doc__, json=False)
    parser.add_argument("json", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args(argv)
    draw(json.loads(arguments.json.read_text(encoding="utf-8")), arguments.picture)
    return 0
