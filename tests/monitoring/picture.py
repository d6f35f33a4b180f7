"""Draws the dashboard as a real Prometheus has it of a loaded server: its panels, not Grafana's.

    PYTHONPATH=tests python -m monitoring.picture out/dashboard.png [--seconds N]

Panels stand where the dashboard has them, with their queries, legends and units. Needs
`prometheus` on the PATH. The server has two workers, one of which is killed halfway.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from monitoring.check import FLAGS
from monitoring.scraper import FILES, Prometheus, filled, prometheus
from support.processes import running_command
from web.picture import Callers

COLUMN_IN, ROW_IN = 0.75, 0.35
MOST_LEGENDS = 12
UNITS: dict[str, Any] = {
    "reqps": EngFormatter("req/s"),
    "s": EngFormatter("s"),
    "bytes": EngFormatter("B"),
    "Bps": EngFormatter("B/s"),
    "percentunit": PercentFormatter(1),
    "short": EngFormatter(),
}


@dataclass(frozen=True)
class Series:
    """One line of a panel: its name in the legend, its times and values."""

    labels: Mapping[str, str]
    name: str
    times: np.ndarray
    values: np.ndarray


def ask(server: Prometheus, target: Mapping[str, Any], begin: float, end: float) -> list[Series]:
    """Return what a query of a panel had, second by second."""
    told = server.ask(
        "query_range",
        query=filled(target["expr"], whole=f"{end - begin:.0f}s"),
        start=f"{begin}",
        end=f"{end}",
        step="1",
    )
    found: list[Series] = []
    for each in told["result"]:
        labels: dict[str, str] = each["metric"]
        pattern: str = target.get("legendFormat", "")
        name = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), pattern)  # noqa: B023
        times, values = np.array(each["values"], float).T
        found.append(Series(labels, name.strip(), times - begin, values))
    return found


def draw_lines(axes: Any, series: list[Series], unit: str) -> None:
    """Draw lines with a legend below."""
    for each in series:
        (line,) = axes.plot(each.times, each.values, linewidth=1, label=each.name)
        axes.fill_between(each.times, each.values, alpha=0.1, color=line.get_color())
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(UNITS[unit])
    handles, names = axes.get_legend_handles_labels()
    more = [f"and {len(names) - MOST_LEGENDS} more"] if len(names) > MOST_LEGENDS else []
    axes.set_xlabel("\n".join(more), fontsize=6)
    axes.legend(
        handles[:MOST_LEGENDS],
        names[:MOST_LEGENDS],
        loc="upper left",
        ncols=2,
        fontsize=5,
        framealpha=0.6,
    )


def draw_heatmap(axes: Any, series: list[Series], _unit: str) -> None:
    """Draw how many calls fell between one bound of a histogram and the next."""
    bounds = sorted(
        (each for each in series if each.labels["le"] != "+Inf"),
        key=lambda each: float(each.labels["le"]),
    )
    times = np.unique(np.concatenate([each.times for each in bounds]))
    counts = np.array([np.interp(times, each.times, each.values) for each in bounds])
    between = np.diff(counts, axis=0, prepend=0)
    axes.pcolormesh(times, np.arange(len(bounds)), between, shading="nearest", cmap="Oranges")
    every = max(1, len(bounds) // 8)
    axes.set_yticks(range(0, len(bounds), every))
    axes.set_yticklabels([f"{float(each.labels['le']):g} s" for each in bounds[::every]])


def draw_numbers(axes: Any, series: list[Series], _unit: str) -> None:
    """Write the last value of each."""
    axes.axis("off")
    for place, each in enumerate(series):
        height = 1 - (place + 0.5) / len(series)
        axes.text(0.5, height, f"{each.values[-1]:g}", fontsize=18, ha="center", va="center")
        axes.text(0.5, height - 0.16, each.name, fontsize=6, ha="center")


def draw_table(axes: Any, series: list[Series], _unit: str) -> None:
    """Write the labels of each."""
    axes.axis("off")
    for place, each in enumerate(series):
        text = "\n".join(f"{name}: {value}" for name, value in each.labels.items())
        axes.text(0.5 * place, 0.95, text, fontsize=6, va="top")


DRAW: dict[str, Callable[[Any, list[Series], str], None]] = {
    "timeseries": draw_lines,
    "heatmap": draw_heatmap,
    "stat": draw_numbers,
    "table": draw_table,
}


def draw(server: Prometheus, begin: float, file: Path) -> None:
    """Draw all panels."""
    panels: list[dict[str, Any]] = json.loads((FILES / "dashboard.json").read_text())["panels"]
    end = time.time()
    width, height = 24, max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in panels)
    figure: Any = Figure(figsize=(width * COLUMN_IN, height * ROW_IN))
    for panel in panels:
        place = panel["gridPos"]
        top = 1 - place["y"] / height
        if panel["type"] == "row":
            figure.text(0.01, top - 0.5 / height, panel["title"], weight="bold", va="center")
            continue
        axes = figure.add_axes(
            (
                (place["x"] + 1) / width,
                top - (place["h"] - 1.2) / height,
                (place["w"] - 1.3) / width,
                (place["h"] - 2.4) / height,
            )
        )
        axes.set_title(panel["title"], fontsize=8)
        axes.tick_params(labelsize=6)
        series = [one for each in panel["targets"] for one in ask(server, each, begin, end)]
        if series:
            DRAW[panel["type"]](axes, series, panel["fieldConfig"]["defaults"]["unit"])
        else:
            axes.text(0.5, 0.5, "No data", ha="center", transform=axes.transAxes)
    figure.savefig(file, dpi=80)


def main() -> None:
    """Load a server, kill a worker, draw."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=90)
    given = parser.parse_args()
    mpl.use("agg")
    with (
        tempfile.TemporaryDirectory() as name,
        running_command(*FLAGS, log=Path(name) / "server.log", env={}) as command,
    ):
        target = command.http_address
        with prometheus(target, Path(name)) as server:
            begin = time.time()
            callers = Callers(command.address)
            try:
                time.sleep(given.seconds / 2)
                command.kill_worker(1)
                time.sleep(given.seconds / 2)
                draw(server, begin, given.file)
            finally:
                callers.stop()


if __name__ == "__main__":
    main()
