"""The status page as HTML, from the dictionary of status.py; pure, and everything is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from gradwire_server.admin_http.history import MOST


class Markup(str):
    """A text that is HTML."""

    __slots__ = ()


def element(name: str, *content: object, **attributes: object) -> Markup:
    """Make an element.

    content     markup as it is, all else as text
    attributes  an underscore at the end is dropped, others stand for hyphens; True has no value,
                False and None leave it out
    """
    written = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>{joined(*content)}</{name}>")


def joined(*content: object) -> Markup:
    """Join content."""
    return Markup(
        "".join(each if isinstance(each, Markup) else escape(str(each)) for each in content)
    )


def _attribute(name: str, value: object) -> str:
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_TEN, _HUNDRED = 10, 100
NOTHING = "–"  # noqa: RUF001 - a dash stands for no figure


def count(number: float) -> str:
    """Write a whole number."""
    return f"{number:,.0f}"


def rate(per_s: float) -> str:
    """Write how many a second."""
    return f"{per_s:,.0f}" if per_s >= _TEN or not per_s else f"{per_s:.1f}"


def size(nbytes: float) -> str:
    """Write bytes, in powers of 1000."""
    scale, prefix = next((each for each in _SCALES if nbytes >= each[0]), (1.0, ""))
    return f"{_three(nbytes / scale)} {prefix}B"


def duration(seconds: float | None) -> str:
    """Write what a call takes; None is no figure."""
    if seconds is None:
        return NOTHING
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds / 1e-6)} µs"


def span(seconds: float) -> str:
    """Write how long something lasts, to two units."""
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def plural(number: int, noun: str) -> str:
    """Write how many there are of something."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def _three(number: float) -> str:
    """Write three digits that tell something."""
    digits = 0 if number >= _HUNDRED else 1 if number >= _TEN else 2
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_HEIGHT = 24.0
_WIDTH = MOST - 2


def sparkline(values: Sequence[float], label: str, *, kind: str = "") -> Markup:
    """Draw how a rate went, the latest value at the right; from zero to the largest one."""
    top = max(values, default=0.0) or 1.0
    points = [
        (_WIDTH - len(values) + 1 + at, _HEIGHT - 1 - (_HEIGHT - 3) * value / top)
        for at, value in enumerate(values)
    ]
    line = " ".join(f"{x:g},{y:.2f}" for x, y in points)
    drawn: list[Markup] = []
    if points:
        left, right = points[0][0], points[-1][0]
        area = f"{left:g},{_HEIGHT:g} {line} {right:g},{_HEIGHT:g}"
        drawn = [
            element("polygon", points=area),
            element("polyline", points=line, vector_effect="non-scaling-stroke"),
        ]
    return element(
        "svg",
        element("title", label),
        element("path", d=f"M0 {_HEIGHT - 0.5:g}H{_WIDTH}", vector_effect="non-scaling-stroke"),
        *drawn,
        class_=f"spark {kind}".strip(),
        role="img",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT:g}",
        preserveAspectRatio="none",
    )


def bar(now: float, limit: float, label: str) -> Markup:
    """Draw how much of a limit is taken."""
    share = min(1.0, now / limit) if limit else 0.0
    return element(
        "svg",
        element("title", f"{label}: {share:.0%} of the limit"),
        element("rect", class_="room", width="100%", height="100%", rx="3"),
        element("rect", class_="taken", width=f"{share:.2%}", height="100%", rx="3"),
        class_="bar",
        role="img",
    )


_STATES = {
    "serving": ("good", "✓ serving"),
    "partly": ("warn", "! some workers do not serve"),
    "away": ("bad", "✕ not serving"),
}
_WORKER_STATES = {
    "serving": "✓ serving",
    "not ready": "… getting ready or stopping",
    "hangs": "! its event loop hangs",
    "away": "✕ away, to be replaced",
}
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath "
    "d='M1 13 8 3l7 10z' fill='%230b6bcb'/%3E%3C/svg%3E"
)


def render(told: Mapping[str, Any]) -> bytes:
    """Return the page."""
    _, state = _STATES[told["state"]]
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<noscript><meta http-equiv="refresh" content="5"></noscript>'),
        Markup(f'<link rel="icon" href="{_ICON}">'),
        element("title", f"gradwire: {state[2:]}"),
        element("style", Markup(_file("page.css"))),
    )
    sections = (
        *(_header(told), _tiles(told)),
        element("div", _what_computes(told), _settings(told["settings"]), class_="left"),
        *(_latency(told["latency"]), _operators(told), _errors(told), _workers(told)),
    )
    body = element(
        "body",
        element(
            "p", "No answer from the server; trying again.", id="stale", role="alert", hidden=True
        ),
        element("main", *sections),
        _footer(told),
        element("script", Markup(_file("page.js"))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n".encode()


@cache
def content_security_policy() -> str:
    """Allow the page its own style and script, and its own server; nothing else."""
    style, script = (
        base64.b64encode(sha256(_file(name).encode()).digest()).decode()
        for name in ("page.css", "page.js")
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


@cache
def _file(name: str) -> str:
    return files("gradwire_server.admin_http").joinpath(name).read_text("utf-8")


def _header(told: Mapping[str, Any]) -> Markup:
    kind, state = _STATES[told["state"]]
    secured = "TLS" if told["tls"] else "without TLS"
    facts = (
        f"version {told['version']}",
        f"{told['address']}, {secured}",
        f"up {span(told['uptime_s'])}",
    )
    return element(
        "header",
        element("h1", "gradwire ", element("span", state, class_=f"state {kind}")),
        element("p", *(element("span", fact) for fact in facts), class_="facts"),
        id="top",
        data_live=True,
    )


def _tiles(told: Mapping[str, Any]) -> Markup:
    rates, history = told["rates"], told["history"]["rates"]

    def rated(title: str, name: str, unit: str, note: str, kind: str = "") -> Markup:
        values = [each[name] for each in history]
        write = size if name == "tensor_bytes" else rate
        figure = NOTHING if rates is None else write(rates[name])
        most = f"at most {write(max(values))}{unit} in 5 min" if values else "measuring"
        return _tile(title, figure, unit, note, sparkline(values, f"{title}: {most}", kind=kind))

    def bounded(title: str, name: str, note: str) -> Markup:
        now, limit = told[name]["now"], told[name]["limit"]
        write = size if name == "request_budget_bytes" else count
        return _tile(title, write(now), f" of {write(limit)}", note, bar(now, limit, title))

    items = 0.0 if rates is None else rates["items"]
    calls = f"{count(told['totals']['calls'])} so far"
    if told["totals"]["items"]:
        calls += f"; {rate(items)} items/s in streams of many"
    return element(
        "section",
        rated("Calls", "calls", "/s", calls),
        rated("Tensor bytes", "tensor_bytes", "/s", "in and out"),
        rated("Failed", "failed", "/s", "calls and items", kind="bad"),
        bounded("Queue", "queue", "wait for a thread"),
        bounded("Request budget", "request_budget_bytes", "memory of calls in flight"),
        bounded("Streams", "streams", f"{plural(told['in_flight'], 'call')} in flight"),
        class_="tiles",
        id="tiles",
        data_live=True,
    )


def _tile(title: str, figure: str, unit: str, note: str, drawing: Markup) -> Markup:
    return element(
        "div",
        element("h2", title),
        element("p", figure, element("small", unit), class_="figure"),
        drawing,
        element("p", note, class_="note"),
        class_="tile",
    )


def _what_computes(told: Mapping[str, Any]) -> Markup:
    workers = plural(len(told["workers"]), "worker")
    threads = plural(told["compute_threads"], "thread")
    what: object = "Not known yet: no worker has told."
    if told["backend"]:
        reason = told["backend_reason"].removeprefix(told["backend"])
        what = joined(element("strong", told["backend"]), reason, ".")
    return _section(
        "computes",
        "What computes",
        element("p", what),
        element("p", f"{workers} of {threads} each, numerics version {told['numerics_version']}."),
    )


def _latency(told: Mapping[str, Any]) -> Markup:
    window = span(told["window_s"])
    rows = [(each["phase"], count(each["count"]), *_quantiles(each)) for each in told["phases"]]
    if not any(each["count"] for each in told["phases"]):
        return _section("latency", "Latency", _empty(f"No call has ended in the last {window}."))
    return _section(
        "latency",
        "Latency",
        _table(("phase", "calls", "p50", "p90", "p99"), rows, words_in=1),
        element("p", f"Of the last {window}, estimated from histograms.", class_="note"),
    )


def _operators(told: Mapping[str, Any]) -> Markup:
    if not told["operators"]:
        return _section("operators", "Operators", _empty("Nothing has been called yet."))
    rows = [
        (
            each["operator"] or "none named",
            rate(each["per_s"]),
            *(duration(each[name]) for name in ("p50_s", "p99_s")),
            *(count(each[name]) for name in ("failed", "calls", "items")),
        )
        for each in told["operators"]
    ]
    names = ("operator", "per s", "p50", "p99", "failed", "calls", "items")
    return _section("operators", "Operators", _table(names, rows, words_in=1))


def _errors(told: Mapping[str, Any]) -> Markup:
    if not told["errors"]:
        return _section("errors", "Recent errors", _empty("None."))
    now = datetime.fromisoformat(told["now"])
    return _section(
        "errors",
        "Recent errors",
        element("ol", *(_error(each, now) for each in told["errors"]), class_="errors"),
    )


def _error(told: Mapping[str, Any], now: datetime) -> Markup:
    at = datetime.fromisoformat(told["latest"]).astimezone(UTC)
    ago = span(max(0.0, (now - at).total_seconds()))
    times = f" {count(told['count'])} times" if told["count"] > 1 else ""
    where = " ".join(filter(None, (told["method"], told["operator"])))
    return element(
        "li",
        element(
            "p",
            element("span", told["reason"], class_="reason"),
            element("span", where),
            element("strong", times) if times else "",
            element("time", f"{ago} ago", datetime=told["latest"], title=told["latest"]),
        ),
        element("p", told["message"]),
        element("p", "request ", element("code", told["request_id"]), class_="note"),
    )


def _workers(told: Mapping[str, Any]) -> Markup:
    memory = {"request budget": "request_budget_bytes", "resident memory": "resident_bytes"}
    if any(each["device_memory_bytes"] for each in told["workers"]):
        memory["GPU memory"] = "device_memory_bytes"
    rows = [
        (
            each["worker"],
            _WORKER_STATES[each["state"]],
            ", ".join(map(str, each["pids"])) or NOTHING,
            *(count(each[name]) for name in ("restarts", "in_flight", "queue", "streams")),
            *(size(each[name]) for name in memory.values()),
            span(each["processor_s"]),
        )
        for each in told["workers"]
    ]
    names = (
        *("worker", "state", "process", "restarts", "in flight", "queue", "streams"),
        *(*memory, "processor time"),
    )
    return _section("workers", "Workers", _table(names, rows, words_in=2))


def _settings(told: Mapping[str, Any]) -> Markup:
    if not told:
        return _section("settings", "Settings", _empty("All have their defaults."))
    return _section(
        "settings",
        "Settings that are not their defaults",
        _table(
            ("setting", "value"), [(name, str(value)) for name, value in told.items()], words_in=2
        ),
    )


def _footer(told: Mapping[str, Any]) -> Markup:
    at = told["now"].replace("T", " ").replace("Z", " UTC")
    return element(
        "footer",
        element("span", f"As of {at}", id="now", data_live=True),
        element("a", "status.json", href="/status.json"),
        element("a", "metrics", href="/metrics"),
    )


def _section(name: str, title: str, *content: Markup) -> Markup:
    return element("section", element("h2", title), *content, id=name, data_live=True)


def _empty(text: str) -> Markup:
    return element("p", text, class_="empty")


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], *, words_in: int) -> Markup:
    """Make a table, of which so many columns at the left hold words and the others figures."""

    def kind(column: int) -> str | None:
        return None if column < words_in else "figure"

    head = (element("th", name, scope="col", class_=kind(at)) for at, name in enumerate(names))
    body = (
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, class_=kind(at + 1)) for at, cell in enumerate(row[1:])),
        )
        for row in rows
    )
    table = element("table", element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", table, class_="wide")


def _quantiles(told: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(duration(told[name]) for name in ("p50_s", "p90_s", "p99_s"))
