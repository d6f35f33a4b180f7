"""Page with the result of a load test: one file without scripts or references.

report.html is its template, in the look of the server's status page. matplotlib draws the charts
where it is installed; their colors are then replaced by the page's, in its light and dark schemes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gradwire.errors import counted
from gradwire.loadtest.result import Document, ScenarioResult, failed, nines

# The page's colors, by those that matplotlib draws with.
_COLORS: Final = {
    **{f"#0000f{number}": f"var(--c{number})" for number in range(4)},
    "#0000e0": "var(--line)",
    "#0000e1": "var(--faint)",
}
_LINES: Final = [*_COLORS][:4]
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.edgecolor": "#0000e0",
    "axes.labelcolor": "#0000e1",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#0000e0",
    "grid.linewidth": 0.6,
    "text.color": "#0000e1",
    "xtick.labelcolor": "#0000e1",
    "ytick.labelcolor": "#0000e1",
}
# In inches of 72 points: type is legible on a phone.
_SIZE: Final = (420 / 72, 240 / 72)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Plots below each other over one axis of seconds, or of percentiles.

    plots       lines of each by the label of its axis, of which "ms" is logarithmic
    duration_s  length of the axis
    nines       of the last percentile, where these are the axis
    """

    title: str
    plots: dict[str, list[ChartLine]]
    duration_s: float = 0.0
    nines: int = 0

    def svg(self) -> Markup:
        """Draw it; return an SVG element without identifiers, whose lines have titles."""
        from matplotlib import rc_context  # noqa: PLC0415 - optional, and slow
        from matplotlib.figure import Figure  # noqa: PLC0415

        written = io.StringIO()
        with rc_context(_STYLE):
            figure = Figure(_SIZE, layout="constrained")
            plots = figure.subplots(len(self.plots), sharex=True, squeeze=False)[:, 0]
            for plot, (label, lines) in zip(plots, self.plots.items(), strict=True):
                for line in lines:
                    _draw(plot, line)
                self._scale(plot, label)
            plots[-1].set_xlabel("percentile" if self.nines else "seconds")
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(written, format="svg", transparent=True, metadata=nothing)
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
            ticks = range(self.nines + 1)
            plot.set_xticks(ticks, [f"{100 - 10.0 ** (2 - tick):.10g} %" for tick in ticks])
            plot.set_xlim(0, self.nines)
        else:
            plot.set_xlim(0, max(self.duration_s, 1.0))
        # Without marks and clipping there is nothing to refer to.
        plot.tick_params(bottom=False, left=False)
        for one in (*plot.lines, *plot.get_xgridlines(), *plot.get_ygridlines()):
            one.set_clip_on(False)


def _draw(plot: Any, line: ChartLine) -> None:
    if line.points:
        x, y = zip(*line.points, strict=True)
        style = (0, (1, 2)) if line.dashed else "-"
        # Of a single point nothing would be seen.
        x, y = (x * 2, y * 2) if len(x) == 1 else (x, y)
        plot.plot(
            x, y, color=_LINES[line.color], linestyle=style, gid=f"line: {line.label}",
            solid_capstyle="round", dash_capstyle="round",
        )  # fmt: skip


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
            label = f"{flow.name}, {name}"
            latencies.append(ChartLine(label, points, color, name == "uncorrected"))
        # Seconds that were measured to their end.
        whole = [one for one in flow.seconds if one.second + 1 <= scenario.duration_s]
        for lines, label, key, dashed in (
            (ends, "right", "ok", False),
            (ends, "other ends", "errors", True),
            (slowest, "p99", "p99_ms", False),
            (slowest, "p50", "p50_ms", True),
        ):
            told = [one for one in whole if lines is ends or one.ok]
            points = [(one.second + 0.5, getattr(one, key)) for one in told]
            if key != "errors" or any(one.errors for one in whole):
                lines.append(ChartLine(f"{flow.name}, {label}", points, color, dashed))
    most = max(2, *(nines(flow.corrected.count) for flow in scenario.flows))
    yield Chart(title="Latency by percentile", plots={"ms": latencies}, nines=most)
    for title, plots in (
        ("Calls that ended in each second", {"calls/s": ends}),
        ("Latency in each second", {"ms": slowest}),
    ):
        yield Chart(title=title, plots=plots, duration_s=scenario.duration_s)
    if scenario.server:
        usage = [one for one in scenario.server if one.second <= scenario.duration_s]
        plots = {
            label: [ChartLine(label, [(one.second, getattr(one, key)) for one in usage], 0)]
            for label, key in (("cores busy", "cpu_cores"), ("MiB resident", "rss_mib"))
        }
        title = "What the server takes: processor and memory"
        yield Chart(title=title, plots=plots, duration_s=scenario.duration_s)


def _text(package: str, name: str) -> Markup:
    # Our own files are not escaped.
    return Markup(files(package).joinpath(name).read_text("utf-8"))  # noqa: S704


_PAGE: Final = Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
).from_string(
    _text("gradwire.loadtest", "report.html"),
    globals={
        "charts": _charts,
        "counted": counted,
        "failed": failed,
        "style": _text("gradwire._wire", "page.css") + _text("gradwire.loadtest", "report.css"),
    },
)
