"""Picture of the results of compute and compute-growth.

    python -m benchmarks compute-plot out/compute.json out/scaling.json FILE.png

The upper plots show, for each case and layout in float32 on one thread, how many times as fast our
backend is as PyTorch in the same layout, as the fastest peer in it, and as the copy loop. The lower
plot shows GB/s by the size of the output gradient, with 1 thread and with 2.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.compute.report import ComputeRecord, Row, load, rows

_BLUE, _ORANGE, _GRAY, _GREEN = "#2a6fbb", "#d9822b", "#888888", "#3c8d5a"


def ratios(axes: Any, found: list[Row], *, title: str) -> None:
    """Draw each case's ratio to the fastest peer as a bar.

    Other ratios are marks in the same line.
    """
    labels = [row.record.case for row in found]
    places = range(len(found))
    axes.barh(
        places,
        [row.same_layout or 0 for row in found],
        color=_BLUE,
        label="over the fastest peer",
        height=0.55,
    )
    layout = found[0].layout if found else "NCX"
    for color, mark, label, values in (
        (
            _ORANGE,
            "o",
            f"over PyTorch {layout}",
            [row.to_peer.get(f"torch {layout}") for row in found],
        ),
        (
            _GREEN,
            "d",
            f"over oneDNN {layout}",
            [row.to_peer.get(f"onednn {layout}") for row in found],
        ),
        (_GRAY, "|", "of the copy loop", [row.to_copy for row in found]),
    ):
        known = [(place, value) for place, value in zip(places, values, strict=True) if value]
        axes.scatter(
            [v for _, v in known], [p for p, _ in known], s=26, c=color, marker=mark, label=label
        )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.4, -0.05), ncols=4, frameon=False)


def growth(axes: Any, records: list[ComputeRecord]) -> None:
    """Draw throughput by size; dashed lines are 2 threads."""
    names = dict.fromkeys(name for record in records for name in record.seconds)
    colors = dict(zip(names, (_BLUE, _ORANGE, _GRAY, _GREEN), strict=False))
    for name, color in colors.items():
        for threads, style in ((1, "-"), (2, "--")):
            some = [one for one in records if one.threads == threads and name in one.seconds]
            if not some:
                continue
            axes.plot(
                [4 * one.dst[2] * one.dst[3] for one in some],
                [one.rate(name) for one in some],
                style,
                color=color,
                marker=".",
                label=f"{name}, {threads} thread{'s' if threads > 1 else ''}",
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = {
        1 << 10: "1 KiB",
        1 << 15: "32 KiB",
        1 << 20: "1 MiB",
        1 << 25: "32 MiB",
        1 << 30: "1 GiB",
    }
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlabel("output gradient, one float32 plane, bilinear x2")
    axes.set_ylabel("GB/s")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)


def main(argv: list[str] | None = None) -> int:
    """Draw the picture."""
    parser = machine.parser("compute-plot", __doc__, json=False)
    parser.add_argument("compute", type=Path)
    parser.add_argument("scaling", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--backend", default="numba_cpu")
    arguments = parser.parse_args(argv)
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    compute, scaling = (
        load(json.loads(path.read_text(encoding="utf-8")))
        for path in (arguments.compute, arguments.scaling)
    )
    found = [
        row
        for record in compute
        if record.dtype == "float32" and record.threads == 1
        for row in rows(record, arguments.backend)
    ]
    figure, axes = pyplot.subplot_mosaic(
        [["NCX", "NXC"], ["growth", "growth"]], figsize=(13, 12), height_ratios=[3, 2]
    )
    for layout, words in (("NCX", "contiguous"), ("NXC", "channels-last")):
        some = [row for row in found if row.layout == layout]
        ratios(axes[layout], some, title=f"{layout} ({words}), float32, 1 thread")
    growth(axes["growth"], scaling)
    figure.tight_layout()
    figure.savefig(arguments.picture, dpi=110)
    return 0
