"""HTML page of a load test's result, in one file.

It has neither scripts nor references. report.html is its template, in the look of the server's
status page. matplotlib draws the charts where it is installed; their colors are then replaced by
the page's, in its light and dark schemes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NamedTuple

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
Points = list[tuple[float, float]]


class ChartLine(NamedTuple):
    """One line of a chart.

    color   number of the page's color, from 0
    dashed  whether it is second to another line of that color
    """

    label: str
    points: Points
    color: int = 0
    dashed: bool = False


def to_html(document: Document) -> str:
    """Return the page."""
    return _PAGE.render(document=document)


def _charts(scenario: ScenarioResult) -> Iterator[tuple[str, Markup]]:
    """Yield titles and charts of a scenario; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return
    latencies, ends, slowest = (list[ChartLine]() for _ in range(3))
    for color, flow in enumerate(scenario.flows):
        for name in ("corrected", "uncorrected"):
            curve = getattr(flow, name).curve
            points = [(2 - math.log10(100 - percent), time) for percent, time in curve]
            latencies.append(
                ChartLine(f"{flow.name}, {name}", points, color, name == "uncorrected")
            )
        # Seconds that were measured completely.
        whole = [one for one in flow.seconds if one.second + 1 <= scenario.duration_s]
        right = [one for one in whole if one.ok]
        for lines, name, key, told, dashed in (
            (ends, "right", "ok", whole, False),
            (ends, "other ends", "errors", [one for one in whole if flow.sent > flow.ok], True),
            (slowest, "p99", "p99_ms", right, False),
            (slowest, "p50", "p50_ms", right, True),
        ):
            points = [(one.second + 0.5, getattr(one, key)) for one in told]
            lines.append(ChartLine(f"{flow.name}, {name}", points, color, dashed))
    most = max(2, *(nines(flow.corrected.count) for flow in scenario.flows))
    end = max(scenario.duration_s, 1.0)
    yield "Latency by percentile", _svg({"ms": latencies}, most, by_nines=True)
    yield "Calls that ended in each second", _svg({"calls/s": ends}, end)
    yield "Latency in each second", _svg({"ms": slowest}, end)
    if scenario.server:
        usage = {
            label: [ChartLine("", [(one.second, getattr(one, key)) for one in scenario.server])]
            for label, key in (("cores busy", "cpu_cores"), ("MiB resident", "rss_mib"))
        }
        yield "What the server takes: processor and memory", _svg(usage, end)


def _svg(plots: dict[str, list[ChartLine]], end: float, *, by_nines: bool = False) -> Markup:
    """Draw plots over one axis; return an SVG element without identifiers.

    plots     lines of each by the label of its axis, of which "ms" is logarithmic
    end       of the axis: seconds, or nines of the last percentile
    """
    from matplotlib import style  # noqa: PLC0415 - optional, and slow
    from matplotlib.figure import Figure  # noqa: PLC0415

    written = io.StringIO()
    with style.context("gradwire.loadtest.report"):
        figure: Any = Figure()
        axes = figure.subplots(len(plots), sharex=True, squeeze=False)[:, 0]
        for plot, (label, lines) in zip(axes, plots.items(), strict=True):
            for line in lines:
                if line.points:
                    # A line of a single point would be invisible.
                    x, y = zip(*line.points, line.points[-1], strict=True)
                    style_ = (0, (1, 2)) if line.dashed else "-"
                    color = _LINES[line.color % len(_LINES)]
                    plot.plot(x, y, color=color, linestyle=style_, label=line.label)
            plot.set(ylabel=label, xlim=(0, end))
            if label == "ms":
                plot.set_yscale("log", subs=())
                plot.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
                plot.yaxis.set_major_formatter("{x:g}")
            else:
                plot.set_ylim(bottom=0)
            if by_nines:
                ticks = range(int(end) + 1)
                plot.set_xticks(ticks, [f"{100 - 10.0 ** (2 - tick):.10g} %" for tick in ticks])
            # Clipping paths would need identifiers.
            for one in (*plot.lines, *plot.get_xgridlines(), *plot.get_ygridlines()):
                one.set_clip_on(False)
        axes[-1].set_xlabel("percentile" if by_nines else "seconds")
        if axes[0].get_legend_handles_labels()[1]:
            figure.legend(loc="outside upper left", ncols=2)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, metadata=nothing)
    text = "<svg" + written.getvalue().partition("<svg")[2]
    text = re.sub(r' (?:id|xmlns(?::xlink)?|version)="[^"]*"', "", text)
    for drawn, color in _COLORS.items():
        text = text.replace(drawn, color)
    return Markup(text)  # noqa: S704 - drawn here, with escaped labels


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
