"""Page with the result of a load test: one file without scripts or references.

Charts are SVG drawn here: their colors and type are those of the page, in its light and dark
schemes. All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

from gradwire.loadtest.result import Document, FlowResult, Latency, ScenarioResult, Second
from gradwire.loadtest.tally import nines

Point = tuple[float, float]

# In units of the picture, which is drawn as wide as its column: type is legible on a phone.
HEIGHT: Final = 240.0
_WIDTH: Final = 420.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 10.0, 10.0, 34.0
# Characters of a tick that stand in the margin.
_NARROW: Final = 3
_FEW_TICKS: Final = 5
# Ticks of a logarithmic axis up to which each 1, 2 and 5 has one.
_MOST_STEPS: Final = 9

_COLORS: Final = 4
# Of a plot that shares its frame with another one.
_HALF: Final = HEIGHT / 2 + 10

# Nothing but what stands in the page.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def to_html(document: Document) -> str:
    """Return the page."""
    when, _, time = document.when.partition("T")
    title = f"Load test of {when}, {time[:5]} UTC"
    style = files("gradwire.loadtest").joinpath("report.css").read_text(encoding="utf-8")
    body = [
        f"<h1>{escape(title)}</h1>",
        _verdict(document),
        _facts(document),
        _overview(document.scenarios),
        *(_section(scenario) for scenario in document.scenarios),
        _READING,
    ]
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>',
            f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            *body,
            "</body>\n</html>\n",
        )
    )


def _verdict(document: Document) -> str:
    flows = [flow for scenario in document.scenarios for flow in scenario.flows]
    right, wrong = (sum(getattr(flow, name) for flow in flows) for name in ("ok", "wrong"))
    failed = sum(_failed(flow) for flow in flows)
    words = [f"{right:,} results, every bit compared: "]
    words.append("none was wrong" if not wrong else f"and {wrong:,} that were WRONG")
    words.append(
        ", no call failed that should not have."
        if failed == wrong
        else f"; {failed - wrong:,} calls failed that should not have."
    )
    ended = "<p>The user ended the test early.</p>" if document.interrupted else ""
    kind = "bad" if failed else "good"
    return f'<p class="verdict {kind}">{escape("".join(words))}</p>{ended}'


def _facts(document: Document) -> str:
    server, machine, settings = document.server, document.machine, document.settings
    where = "started for the test, on the same machine" if server.own else server.target
    asked = f"{settings.duration_s:g} s each, after {settings.warm_up_s:g} s of warm-up"
    facts = {
        "Server": f"gradwire {server.version or '?'}, backend {server.backend or '?'}, {where}",
        "Backend": server.backend_reason or "not told",
        "Calls from": _many(settings.processes, "process")
        + f", {_many(settings.connections, 'connection')} for calls and as many for streams each",
        "Machine": f"{machine.cpu}, {machine.cores} cores, {machine.memory_mib / 1024:.0f} GiB",
        "Software": f"{machine.system}, Python {machine.python}, "
        + ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
        "Load before": f"{machine.load:g}",
        "Duration": asked,
        "Command": document.command,
    }
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _many(count: int, word: str) -> str:
    ending = "" if count == 1 else "es" if word.endswith("s") else "s"
    return f"{count} {word}{ending}"


def _overview(scenarios: Sequence[ScenarioResult]) -> str:
    rows = [
        (
            scenario.name if flow is scenario.flows[0] else "",
            flow.name,
            _loop(flow),
            f"{flow.calls_per_s:,.1f}",
            f"{flow.megabytes_per_s:,.1f}",
            *_times(flow.corrected),
            _time(flow.uncorrected.p99_ms, flow.uncorrected.count),
            f"{_failed(flow):,}",
        )
        for scenario in scenarios
        for flow in scenario.flows
    ]
    titles = ("scenario", "flow", "loop", "right/s", "MB/s", *_TIMES, "p99 uncorrected", "failed")
    caption = (
        "Latencies in milliseconds, of right results, corrected for coordinated omission. "
        "Failed are calls that ended in a way the scenario is not about."
    )
    return _table(titles, rows, caption=caption, left=3)


_TIMES: Final = ("p50", "p90", "p99", "p99.9", "max")


def _times(latency: Latency) -> tuple[str, ...]:
    times = (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms)
    return tuple(_time(time, latency.count) for time in times)


def _time(milliseconds: float, count: int) -> str:
    """Write a time that so many calls took; none have none."""
    return f"{milliseconds:,.2f}" if count else "-"


def _loop(flow: FlowResult) -> str:
    if flow.rate is not None:
        return f"open, {flow.rate:,.4g}/s"
    return f"closed, {_many(flow.callers or 0, 'caller')}"


def _section(scenario: ScenarioResult) -> str:
    peak = scenario.peak_per_s
    found = "" if peak is None else f" In a closed loop it served {peak:,.1f} calls/s."
    parts = [
        f"<h2>{escape(scenario.name)}</h2>",
        f'<p class="soft">{escape(_sentence(scenario.summary))}.{escape(found)}</p>',
        *(f'<p class="note">{escape(warning)}.</p>' for warning in scenario.warnings),
        '<div class="charts">',
        _percentiles(scenario.flows),
        _over_time(scenario),
        _slowest(scenario),
        *_server(scenario),
        "</div>",
        _outcomes(scenario),
    ]
    return "\n".join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _percentiles(flows: Sequence[FlowResult]) -> str:
    lines: list[ChartLine] = []
    for number, flow in enumerate(flows):
        for name, latency in (("corrected", flow.corrected), ("uncorrected", flow.uncorrected)):
            points = [(percent, time) for percent, time in latency.curve]
            label = f"{flow.name}, {name}"
            lines.append(ChartLine(label, points, number % _COLORS, dashed=name == "uncorrected"))
    across = percentiles("percentile", max([*(nines(flow.corrected.count) for flow in flows), 2]))
    return _figure("Latency by percentile", across, _logarithmic("ms", lines), lines)


def _over_time(scenario: ScenarioResult) -> str:
    lines: list[ChartLine] = []
    for number, flow in enumerate(scenario.flows):
        whole = _whole(flow, scenario)
        points = [(one.second + 0.5, float(one.ok)) for one in whole]
        lines.append(ChartLine(f"{flow.name}, right", points, number % _COLORS))
        if any(one.errors for one in whole):
            points = [(one.second + 0.5, float(one.errors)) for one in whole]
            lines.append(
                ChartLine(f"{flow.name}, other ends", points, number % _COLORS, dashed=True)
            )
    across = seconds("seconds", scenario.duration_s)
    return _figure("Calls that ended in each second", across, _linear("calls/s", lines), lines)


def _slowest(scenario: ScenarioResult) -> str:
    lines: list[ChartLine] = []
    for number, flow in enumerate(scenario.flows):
        told = [one for one in _whole(flow, scenario) if one.ok]
        for name, dashed in (("p99", False), ("p50", True)):
            points = [(one.second + 0.5, getattr(one, f"{name}_ms")) for one in told]
            lines.append(ChartLine(f"{flow.name}, {name}", points, number % _COLORS, dashed=dashed))
    across = seconds("seconds", scenario.duration_s)
    return _figure("Latency in each second", across, _logarithmic("ms", lines), lines)


def _whole(flow: FlowResult, scenario: ScenarioResult) -> list[Second]:
    """Return the seconds of a flow that were measured to their end."""
    return [one for one in flow.seconds if one.second + 1 <= scenario.duration_s]


def _server(scenario: ScenarioResult) -> Iterable[str]:
    if not scenario.server:
        return
    across = seconds("seconds", scenario.duration_s)
    told = [one for one in scenario.server if one.second <= scenario.duration_s]
    cpu = ChartLine("cores busy", [(one.second, one.cpu_cores) for one in told], 0)
    rss = ChartLine("MiB resident", [(one.second, one.rss_mib) for one in told], 0)
    plots = (
        chart(f"Server: {line.label}", across, _linear(line.label, [line]), [line], height=_HALF)
        for line in (cpu, rss)
    )
    title = "What the server takes: processor and memory"
    yield f"<figure><h3>{title}</h3>{''.join(plots)}</figure>"


def _outcomes(scenario: ScenarioResult) -> str:
    rows = [
        (
            flow.name if outcome is flow.outcomes[0] else "",
            outcome.status,
            outcome.reason or "-",
            "-" if outcome.status == "OK" else "yes" if outcome.retryable else "no",
            "yes" if outcome.expected else "NO",
            f"{outcome.count:,}",
            f"{outcome.count / max(flow.sent, 1):.2%}",
            f"{outcome.p50_ms:,.2f}",
            f"{outcome.p99_ms:,.2f}",
        )
        for flow in scenario.flows
        for outcome in flow.outcomes
    ]
    titles = ("flow", "status", "reason", "retryable", "expected", "calls", "share", "p50", "p99")
    caption = "How calls ended; milliseconds from when each was made."
    return _table(titles, rows, caption=caption, left=5)


def _failed(flow: FlowResult) -> int:
    return sum(outcome.count for outcome in flow.outcomes if not outcome.expected)


def _logarithmic(label: str, lines: Sequence[ChartLine]) -> Scale:
    values = [y for line in lines for _, y in line.points if y > 0]
    return logarithmic(label, min(values, default=1.0), max(values, default=10.0))


def _linear(label: str, lines: Sequence[ChartLine]) -> Scale:
    return linear(label, max((y for line in lines for _, y in line.points), default=1.0))


def _figure(title: str, across: Scale, up: Scale, lines: Sequence[ChartLine]) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 26 8" aria-hidden="true">'
        f'<path class="line c{line.color}{" dashed" if line.dashed else ""}" d="M2 4 L24 4"/></svg>'
        f"{escape(line.label)}</li>"
        for line in lines
    )
    legend = f'<ul class="legend">{keys}</ul>'
    return f"<figure><h3>{escape(title)}</h3>{legend}{chart(title, across, up, lines)}</figure>"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, left: int) -> str:
    """Return a table whose first columns are aligned to the left."""

    def cells(tag: str, row: Sequence[str]) -> str:
        opened = [
            f'<{tag} class="left">' if column < left else f"<{tag}>" for column in range(len(row))
        ]
        words = (f"{start}{escape(cell)}</{tag}>" for start, cell in zip(opened, row, strict=True))
        return f"<tr>{''.join(words)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    return (
        f'<p class="soft">{escape(caption)}</p><div class="wide"><table>'
        f"<thead>{cells('th', titles)}</thead><tbody>{body}</tbody></table></div>"
    )


_READING: Final = """\
<details><summary>How to read this</summary>
<p>In an <em>open</em> loop calls are due at a fixed rate, whether or not those before them have
ended; a corrected latency counts from when its call was due. In a <em>closed</em> loop each caller
waits for its result; a server that stops then delays few calls where it would delay many in
reality. There the corrected latencies are those of HdrHistogram, with the median as the expected
interval: they hold the calls that would have been made meanwhile. Uncorrected latencies count from
when a call was made, and flatter a server that stops.</p>
<p>A curve goes as far as there are calls: to 99.9 % where there are a thousand.</p>
</details>"""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart.

    color   number of the page's color, from 0
    dashed  whether it is second to another line of that color
    """

    label: str
    points: Sequence[Point]
    color: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: the label, what places a value between 0 and 1, and its ticks with their words."""

    label: str
    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def linear(label: str, most: float) -> Scale:
    """Return an axis from 0 to a round number."""
    step = _round_step(most or 1.0)
    top = step * math.ceil((most or 1.0) / step - 1e-9)
    count = round(top / step)
    return Scale(
        label, lambda value: value / top, [(step * n, f"{step * n:g}") for n in range(count + 1)]
    )


def seconds(label: str, most: float) -> Scale:
    """Return an axis from 0 to exactly this many seconds."""
    most = max(most, 1.0)
    step = _round_step(most)
    ticks = [(step * n, f"{step * n:g}") for n in range(int(most / step + 1e-9) + 1)]
    return Scale(label, lambda value: value / most, ticks)


def logarithmic(label: str, least: float, most: float) -> Scale:
    """Return a logarithmic axis with room for values from `least` to `most`, between 1, 2 or 5."""
    powers = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    low = max(step for step in steps if step <= least)
    high = min(step for step in steps if step >= most and step > low)
    inside = [step for step in steps if low <= step <= high]
    if len(inside) > _MOST_STEPS:
        inside = inside[:: 3 if len(inside) > 2 * _MOST_STEPS else 2]
    span = math.log10(high / low)
    return Scale(
        label,
        lambda value: math.log10(max(value, low) / low) / span,
        [(step, f"{step:,g}") for step in inside],
    )


def percentiles(label: str, most: int) -> Scale:
    """Return an axis of percentiles on which 90, 99, 99.9 and so on are equally far apart."""
    ticks = [(0.0, "0")] + [
        (100 - 10.0 ** (2 - number), f"{100 - 10.0 ** (2 - number):.10g} %")
        for number in range(1, most + 1)
    ]
    return Scale(label, lambda percent: (2 - math.log10(max(100 - percent, 1e-9))) / most, ticks)


def chart(
    title: str, across: Scale, up: Scale, lines: Sequence[ChartLine], *, height: float = HEIGHT
) -> str:
    """Draw lines; return the SVG element."""
    frame = _Frame(height)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}">',
        *_grid(frame, across, up),
        *(_path(frame, line, across, up) for line in lines),
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where things are in a picture of this height."""

    height: float

    @property
    def bottom(self) -> float:
        """Where the axis across is."""
        return self.height - _BOTTOM

    def x(self, place: float) -> float:
        """Return where a place from 0 to 1 is, from the left."""
        return round(_LEFT + min(max(place, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, place: float) -> float:
        """Return where a place from 0 to 1 is, from the top."""
        return round(self.bottom - min(max(place, 0.0), 1.0) * (self.bottom - _TOP), 1)


def _grid(frame: _Frame, across: Scale, up: Scale) -> list[str]:
    bottom, right = frame.bottom, _WIDTH - _RIGHT
    parts: list[str] = []
    for value, words in up.ticks:
        y = frame.y(up.place(value))
        parts.append(f'<line class="grid" x1="{_LEFT:g}" x2="{right:g}" y1="{y}" y2="{y}"/>')
        parts.append(_text(_LEFT - 5, y + 4, words, "end"))
    for value, words in across.ticks:
        x = frame.x(across.place(value))
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP:g}" y2="{bottom:g}"/>')
        # Words at the edge stay in the picture.
        anchor = "end" if len(words) > _NARROW and x > right - 1 else "middle"
        parts.append(_text(x, bottom + 14, words, anchor))
    parts.append(_text((_LEFT + right) / 2, frame.height - 4, across.label, "middle"))
    middle = (_TOP + bottom) / 2
    turned = f' transform="rotate(-90 10 {middle:g})"'
    parts.append(_text(10, middle, up.label, "middle", more=turned))
    return parts


def _text(x: float, y: float, words: str, anchor: str, *, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _path(frame: _Frame, line: ChartLine, across: Scale, up: Scale) -> str:
    places = [f"{frame.x(across.place(x))} {frame.y(up.place(y))}" for x, y in line.points]
    if not places:
        return ""
    # Of a single point nothing would be seen.
    drawn = " L".join(places if len(places) > 1 else places * 2)
    dashed = " dashed" if line.dashed else ""
    name = escape(line.label)
    return f'<path class="line c{line.color}{dashed}" d="M{drawn}"><title>{name}</title></path>'


def _round_step(most: float) -> float:
    """Return 1, 2 or 5 times a power of ten of which few reach up to `most`."""
    power = 10.0 ** math.floor(math.log10(most / _FEW_TICKS))
    return next(
        step * power for step in (1, 2, 5, 10) if step * power * _FEW_TICKS >= most * (1 - 1e-9)
    )
