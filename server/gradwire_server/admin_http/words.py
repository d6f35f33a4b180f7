"""Figures as people read them."""

from __future__ import annotations

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
