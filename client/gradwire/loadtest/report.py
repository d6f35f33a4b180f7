"""HTML page of a load test's result, in one file.

It has neither scripts nor references. report.html is its template, in the look of the server's
status page. matplotlib draws the charts where it is installed; their colors are then replaced by
the page's, in its light and dark schemes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, StrictUndefined

from gradwire.errors import counted, installing
from gradwire.loadtest.result import Document, FlowResult, ScenarioResult, failed, nines
from gradwire.tensors import Array

# Attributes that name or refer to an element, which would be ambiguous in one page.
_REFERENCES = re.compile(r' (?:id|clip-path|xmlns(?::xlink)?|version)="[^"]*"')


class ChartLine(NamedTuple):
    """One line of a chart.

    points  float64[n, 2]
    color   of the page, "C0" to "C3"
    form    of matplotlib: "-", or ":" for one that is second to another line of its color
    """

    label: str
    points: Array
    color: str = "C0"
    form: str = "-"


def to_html(document: Document) -> str:
    """Return the page."""
    return _PAGE.render(document=document)


def _charts(scenario: ScenarioResult) -> Iterator[tuple[str, str]]:
    """Yield titles and charts of a scenario; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return
    flows, end = scenario.flows, max(scenario.duration_s, 1.0)

    def lines(points: Callable[[FlowResult, str], Array], *keys: str) -> list[ChartLine]:
        return [
            ChartLine(f"{flow.name}, {key}", points(flow, key), f"C{number % 4}", form)
            for number, flow in enumerate(flows)
            for key, form in zip(keys, "-:", strict=True)
        ]

    def by_percentile(flow: FlowResult, key: str) -> Array:
        percents, times = np.reshape(getattr(flow, key).curve, (-1, 2)).T
        return np.stack([2 - np.log10(100 - percents), times], axis=1)

    def by_second(flow: FlowResult, key: str) -> Array:
        # Seconds that were measured completely.
        whole = flow.seconds[: int(scenario.duration_s)]
        return np.array([(one.second + 0.5, getattr(one, key)) for one in whole])

    most = max(2, *(nines(flow.corrected.count) for flow in flows))
    latencies = lines(by_percentile, "corrected", "uncorrected")
    yield "Latency by percentile", _svg("ms", latencies, most, by_nines=True)
    yield "Calls that ended in each second", _svg("calls/s", lines(by_second, "ok", "errors"), end)
    yield "Latency in each second", _svg("ms", lines(by_second, "p99_ms", "p50_ms"), end)
    for title, label, key in (
        ("What the server takes: processor", "cores busy", "cpu_cores"),
        ("What the server takes: memory", "MiB resident", "rss_mib"),
    ):
        points = np.array([(one.second, getattr(one, key)) for one in scenario.server])
        if scenario.server:
            yield title, _svg(label, [ChartLine("all its processes", points)], end)


def _svg(label: str, lines: list[ChartLine], end: float, *, by_nines: bool = False) -> str:
    """Draw a chart; return an SVG element without identifiers.

    label     of the vertical axis, which is logarithmic for "ms"
    end       of the other axis: seconds, or nines of the last percentile
    """
    from matplotlib import style  # noqa: PLC0415 - optional, and slow
    from matplotlib.figure import Figure  # noqa: PLC0415

    written = io.StringIO()
    with style.context("gradwire.loadtest.report"):
        figure: Any = Figure()
        plot = figure.subplots()
        plot.set(xlabel="seconds", ylabel=label, xlim=(0, end))
        if label == "ms":
            plot.set_yscale("log", subs=(), nonpositive="mask")
            plot.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
            plot.yaxis.set_major_formatter("{x:g}")
        for line in lines:
            # The last point twice: a line of a single point would be invisible.
            x, y = np.reshape([*line.points, *line.points[-1:]], (-1, 2)).T
            plot.plot(x, y, color=line.color, linestyle=line.form, label=line.label)
        if label != "ms":
            plot.set_ylim(bottom=0)
        if by_nines:
            ticks = range(int(end) + 1)
            plot.set_xticks(ticks, [f"{100 - 10.0 ** (2 - tick):.10g} %" for tick in ticks])
            plot.set_xlabel("percentile")
        figure.legend(loc="outside upper left", ncols=2)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, metadata=nothing)
    text = "<svg" + _REFERENCES.sub("", written.getvalue()).partition("<svg")[2]
    # report.mplstyle has these colors, and report.css the page's for them.
    return re.sub(r"#0000f(\d)", r"var(--c\1)", text)


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text("utf-8")


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
