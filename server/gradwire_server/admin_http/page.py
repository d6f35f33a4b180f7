"""HTML of the status page, from the dictionary of status.py.

Pure functions; every value is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gradwire_server.admin_http.history import MOST

_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_TEN, _HUNDRED = 10, 100
NOTHING = "–"  # noqa: RUF001 - a dash stands for no figure


def count(number: float) -> str:
    """Write a whole number."""
    return f"{number:,.0f}"


def rate(per_s: float) -> str:
    """Write a rate per second."""
    return f"{per_s:,.0f}" if per_s >= _TEN or not per_s else f"{per_s:.1f}"


def size(nbytes: float) -> str:
    """Write bytes, in powers of 1000."""
    scale, prefix = next((each for each in _SCALES if nbytes >= each[0]), (1.0, ""))
    return f"{_three(nbytes / scale)} {prefix}B"


def duration(seconds: float | None) -> str:
    """Write a short duration; None is no figure."""
    if seconds is None:
        return NOTHING
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds / 1e-6)} µs"


def span(seconds: float) -> str:
    """Write a long duration, to two units."""
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def plural(number: int, noun: str) -> str:
    """Write a count and its noun."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def _three(number: float) -> str:
    """Write three significant digits."""
    digits = 0 if number >= _HUNDRED else 1 if number >= _TEN else 2
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ago(latest: str, now: str) -> str:
    since = datetime.fromisoformat(now) - datetime.fromisoformat(latest)
    return span(max(0.0, since.total_seconds()))


_SPARK_WIDTH = MOST - 2


def _points(values: Sequence[float]) -> str:
    """Return the points of the line of a rate.

    The line is 24 high, and the latest value is at the right.
    """
    top = max(values) or 1.0
    left = _SPARK_WIDTH - len(values) + 1
    return " ".join(f"{left + at},{23 - 21 * value / top:.2f}" for at, value in enumerate(values))


def _file(name: str, package: str = "gradwire_server.admin_http") -> str:
    return files(package).joinpath(name).read_text("utf-8")


def _source(text: str) -> str:
    digest = base64.b64encode(sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


# The report of a load test has the same look.
_STYLE = _file("page.css", "gradwire._wire") + _file("page.css")
_SCRIPT = _file("page.js")
# The page may use its own style and script, and its own server; nothing else.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {_source(_STYLE)}; script-src {_source(_SCRIPT)}; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

_environment = Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)
_writers = (count, rate, size, duration, span, plural)
_PAGE = _environment.from_string(
    _file("page.html"),
    globals={
        **{each.__name__: each for each in _writers},
        "ago": _ago,
        "points": _points,
        "spark_width": _SPARK_WIDTH,
        # Our own files are not escaped.
        "style": Markup(_STYLE),  # noqa: S704
        "script": Markup(_SCRIPT),  # noqa: S704
    },
)


def render(told: Mapping[str, Any]) -> bytes:
    """Return the page."""
    return _PAGE.render(told).encode()
