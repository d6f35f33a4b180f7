"""Line charts as SVG whose colors and type are the page's: they follow its light and dark schemes.

Drawn here and not by a plotting library, whose pictures have colors and sizes of their own. All
text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

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


def nines(label: str, most: int) -> Scale:
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
