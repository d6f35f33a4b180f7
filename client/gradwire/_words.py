"""Numbers of things in words."""

from __future__ import annotations

_MANY = {"axis": "axes"}


def counted(amount: int, noun: str) -> str:
    """Tell how many there are: "1 axis", "2 axes", "0 values"."""
    return f"{amount} {noun if amount == 1 else _MANY.get(noun, f'{noun}s')}"
