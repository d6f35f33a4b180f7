"""HTML page of a load test's result, in one file.

It has neither scripts nor references. report.html is its template, in the look of the server's
status page. matplotlib draws the charts where it is installed; their colors are then replaced by
the page's, in its light and dark schemes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gradwire.errors import counted, installing
from gradwire.loadtest.result import Document, ScenarioResult, failed, nines

# The page's colors for the colors of matplotlib's drawings; see report.mplstyle.
_LINES = [f"#0000f{number}" for number in range(4)]
_COLORS = {
    **{drawn: f"var(--c{drawn[-1]})" for drawn in _LINES},
    "#0000e0": "var(--line)",
    "#0000e1": "var(--faint)",
}


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart.

    color   number of the page's color, from 0
    dashed  whether it is second to another line of that color
    """

    label: str
    points: Sequence[Sequence[float]]
    color: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Plots below each other over one axis.

    plots  lines of each by the label of its axis, of which "ms" is logarithmic
    end    of the axis: seconds, or nines of the last percentile
    """

    title: str
    plots: dict[str, list[ChartLine]]
    end: float
    nines: bool = False

    def svg(self) -> Markup:
        """Draw the chart; return an SVG element without identifiers.

        The chart's lines have titles.
        """
        from matplotlib import style  # noqa: PLC0415 - optional, and slow
        from matplotlib.figure import Figure  # noqa: PLC0415

        written = io.StringIO()
        with style.context("gradwire.loadtest.report"):
            figure: Any = Figure()
            plots = figure.subplots(len(self.plots), sharex=True, squeeze=False)[:, 0]
            for plot, (label, lines) in zip(plots, self.plots.items(), strict=True):
                for line in lines:
                    _draw(plot, line)
                self._scale(plot, label)
            plots[-1].set_xlabel("percentile" if self.nines else "seconds")
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(written, metadata=nothing)
        text = "<svg" + written.getvalue().partition("<svg")[2]
        text = re.sub(r'<g id="line: (.*?)">', r"<g><title>\1</title>", text)
        text = re.sub(r' (?:id|xmlns(?::xlink)?|version)="[^"]*"', "", text)
        for drawn, color in _COLORS.items():
            text = text.replace(drawn, color)
        return Markup(text)  # noqa: S704 - drawn here, with escaped labels

    def _scale(self, plot: Any, label: str) -> None:
        plot.set_ylabel(label)
        if label == "ms":
            plot.set_yscale("log", subs=())
            plot.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
            plot.yaxis.set_major_formatter("{x:g}")
        else:
            plot.set_ylim(bottom=0)
        if self.nines:
            ticks = range(int(self.end) + 1)
            plot.set_xticks(ticks, [f"{100 - 10.0 ** (2 - tick):.10g} %" for tick in ticks])
        plot.set_xlim(0, self.end)
        # Clipping paths would need identifiers.
        for one in (*plot.lines, *plot.get_xgridlines(), *plot.get_ygridlines()):
            one.set_clip_on(False)


def _draw(plot: Any, line: ChartLine) -> None:
    if line.points:
        x, y = zip(*line.points, strict=True)
        style = (0, (1, 2)) if line.dashed else "-"
        # A line of a single point would be invisible.
        x, y = (x * 2, y * 2) if len(x) == 1 else (x, y)
        color = _LINES[line.color]
        plot.plot(x, y, color=color, linestyle=style, gid=f"line: {line.label}")


def to_html(document: Document) -> str:
    """Return the page."""
    return _PAGE.render(document=document)


def _charts(scenario: ScenarioResult) -> Iterator[Chart]:
    """Yield the charts of a scenario; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return
    latencies: list[ChartLine] = []
    ends: list[ChartLine] = []
    slowest: list[ChartLine] = []
    for number, flow in enumerate(scenario.flows):
        color = number % len(_LINES)
        for name, latency in (("corrected", flow.corrected), ("uncorrected", flow.uncorrected)):
            points = [(2 - math.log10(100 - percent), time) for percent, time in latency.curve]
            dashed = name == "uncorrected"
            latencies.append(ChartLine(f"{flow.name}, {name}", points, color, dashed))
        # Seconds that were measured completely.
        whole = [one for one in flow.seconds if one.second + 1 <= scenario.duration_s]
        right = [one for one in whole if one.ok]
        for lines, name, key, told in (
            (ends, "right", "ok", whole),
            (ends, "other ends", "errors", whole if any(one.errors for one in whole) else []),
            (slowest, "p99", "p99_ms", right),
            (slowest, "p50", "p50_ms", right),
        ):
            points = [(one.second + 0.5, getattr(one, key)) for one in told]
            if points:
                dashed = name in {"other ends", "p50"}
                lines.append(ChartLine(f"{flow.name}, {name}", points, color, dashed))
    most = max(2, *(nines(flow.corrected.count) for flow in scenario.flows))
    end = max(scenario.duration_s, 1.0)
    yield Chart("Latency by percentile", {"ms": latencies}, most, nines=True)
    yield Chart("Calls that ended in each second", {"calls/s": ends}, end)
    yield Chart("Latency in each second", {"ms": slowest}, end)
    usage = {
        label: [(one.second, getattr(one, key)) for one in scenario.server if one.second <= end]
        for label, key in (("cores busy", "cpu_cores"), ("MiB resident", "rss_mib"))
    }
    if scenario.server:
        plots = {label: [ChartLine(label, points, 0)] for label, points in usage.items()}
        yield Chart("What the server takes: processor and memory", plots, end)


def _text(package: str, name: str) -> Markup:
    # Our own files are not escaped.
    return Markup(files(package).joinpath(name).read_text("utf-8"))  # noqa: S704


_PAGE = Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
).from_string(
    _text("gradwire.loadtest", "report.html"),
    globals={
        "charts": _charts,
        "counted": counted,
        "failed": failed,
        "installing": installing,
        "style": _text("gradwire._wire", "page.css") + _text("gradwire.loadtest", "report.css"),
    },
)
