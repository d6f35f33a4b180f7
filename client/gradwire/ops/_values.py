"""Values as they came from a caller: unwrapped, and in the words of a refusal."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from difflib import get_close_matches


def plain(value: object) -> object:
    """Unwrap an array scalar, or an array without axes, of whichever library."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def shown(value: object) -> str:
    """Write a value as it came, with its type."""
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits.
        text = "too long to show"
    return text if value is None else f"{text} ({type(value).__name__})"


def alternatives(names: tuple[str, ...]) -> str:
    """Join words that would do."""
    return " or ".join(repr(name) for name in names)


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """Return a hint at what was meant; nothing where no word is near.

    known  by each word that is taken, the one to give: a synonym's is what it stands for
    """
    by_lower = {word.lower(): given for word, given in known.items()}
    close = get_close_matches(name.lower().replace("-", "_"), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
