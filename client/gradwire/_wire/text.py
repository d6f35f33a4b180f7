"""Wording of messages: counts, and the names of arguments."""

from __future__ import annotations

import re
from typing import Final

_PLURALS: Final = {"axis": "axes"}

# Paths on the wire, and the arguments of the SDK that they stand for.
_ARGUMENTS: Final = (
    (re.compile(r"\boperator\.\w+\.(?=\w)"), ""),
    (re.compile(r"\boperator\.(?=\w)"), ""),
    (re.compile(r"\binput\.sizes\b"), "array.shape"),
    (re.compile(r"\binput\.data_type\b"), "array.dtype"),
    (re.compile(r"\binput\.strides\b"), "array.strides"),
    (re.compile(r"\boutput\.sizes\b"), "output_shape"),
    (re.compile(r"\boutput\.data_type\b"), "out.dtype"),
    (re.compile(r"\boutput\.strides\b"), "out.strides"),
    (re.compile(r"^(?:input|data)(?=:|$)"), "array"),
    (re.compile(r"^output(?=:|$)"), "output_shape"),
)


def counted(amount: int, noun: str) -> str:
    """Return a count with its noun: "1 axis", "2 axes", "0 values"."""
    return f"{amount} {noun if amount == 1 else _PLURALS.get(noun, f'{noun}s')}"


def named_as_arguments(text: str) -> str:
    """Replace paths on the wire by the SDK's names of arguments and attributes."""
    for path, name in _ARGUMENTS:
        text = path.sub(name, text)
    return text
