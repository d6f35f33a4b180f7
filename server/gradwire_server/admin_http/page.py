"""HTML of the status page, from the dictionary of status.py.

Every value is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.3f}"


def _span(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _file(name: str, package: str = "gradwire_server.admin_http") -> Markup:
    # Our own files are not escaped.
    return Markup(files(package).joinpath(name).read_text("utf-8"))  # noqa: S704


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
_environment.filters |= {"count": _count, "ms": _milliseconds, "span": _span}
_PAGE = _environment.from_string(_file("page.html"), globals={"style": _STYLE, "script": _SCRIPT})


def render(told: Mapping[str, Any]) -> bytes:
    """Return the page."""
    return _PAGE.render(told).encode("utf-8", "replace")
