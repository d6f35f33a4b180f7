"""Numbers in words and digits, for messages."""

from __future__ import annotations

import numpy as np

_MANY = {"axis": "axes"}


def counted(amount: int, noun: str) -> str:
    """Tell how many there are: "1 axis", "2 axes", "0 values"."""
    return f"{amount} {noun if amount == 1 else _MANY.get(noun, f'{noun}s')}"


def shortest(value: float) -> str:
    """Write a float32 with as few digits as tell it from all others."""
    return str(np.float32(value))
