"""Small drawings of the status page, as SVG without any style of its own."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire_server.admin_http.history import MOST
from gradwire_server.admin_http.markup import Markup, element

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
