"""What an attribute of an operator may hold, and the words that refuse anything else.

Client and server both build the dataclasses of this package, so a wrong value meets the same check
and the same words on either side. ListOperators tells the same facts to other languages.
"""

from __future__ import annotations

import math
import operator
import reprlib
import struct
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import Field, dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, Protocol

from gradwire.errors import InvalidRequestError

_METADATA_KEY = "attribute"


class Attribute(Protocol):
    """The rule of one attribute.

    type_name     "enum", "float[]", "int64[]" or "int32[]"
    description   meaning, unit and rule, for people
    default_text  what holds where it is absent; empty where the dataclass's default says it
    """

    @property
    def type_name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def default_text(self) -> str: ...
    @property
    def wanted(self) -> str:
        """What would do, as the end of an error message."""
        ...

    def normalize(self, path: str, value: object) -> object:
        """Return the value as it is stored; raise InvalidRequestError where it breaks the rule."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One string of a closed set, an enum on the wire.

    allowed   the strings; the names of the enum's values in lower case, save for data formats
    synonyms  other names that are taken for one of them
    optional  whether None is one of its values
    """

    allowed: tuple[str, ...]
    description: str
    default_text: str = ""
    synonyms: tuple[tuple[str, str], ...] = ()
    optional: bool = False

    @property
    def type_name(self) -> str:
        return "enum"

    @property
    def wanted(self) -> str:
        return f"give {_alternatives(self.allowed)}"

    def normalize(self, path: str, value: object) -> str | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, str):
            raise InvalidRequestError.of(path, f"is {_shown(value)}; {self.wanted}")
        value = dict(self.synonyms).get(value, value)
        if value not in self.allowed:
            hint = _did_you_mean(value, (*dict(self.synonyms), *self.allowed))
            raise InvalidRequestError.of(path, f"is {value!r}; {self.wanted}{hint}")
        # An equal plain string: a subclass, such as an enum's member, would not survive pickling.
        return self.allowed[self.allowed.index(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floats:
    """Finite numbers, at most `most` of them, rounded to float32 as the wire carries them."""

    most: int
    description: str
    default_text: str
    positive: bool

    @property
    def type_name(self) -> str:
        return "float[]"

    @property
    def wanted(self) -> str:
        each = "finite and above 0" if self.positive else "finite"
        return f"give numbers, each {each} in float32"

    def normalize(self, path: str, value: object) -> tuple[float, ...]:
        items = _items(path, value, self)
        return tuple(self._number(f"{path}[{i}]", item) for i, item in enumerate(items))

    def _number(self, path: str, item: object) -> float:
        plain = _plain(item)
        if isinstance(plain, bool) or not hasattr(plain, "__float__"):
            raise InvalidRequestError.of(path, f"is {_shown(item)}; {self.wanted}")
        try:
            (rounded,) = struct.unpack("<f", struct.pack("<f", plain))
        except (OverflowError, TypeError, ValueError, struct.error):
            rounded = math.inf
        if not math.isfinite(rounded) or (self.positive and rounded <= 0):
            raise InvalidRequestError.of(path, f"is {_shown(item)}; {self.wanted}")
        return float(rounded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Numbers of elements, each at least 1, at most `most` of them, in `bits` bits with sign."""

    most: int
    description: str
    default_text: str
    bits: int

    @property
    def type_name(self) -> str:
        return f"int{self.bits}[]"

    @property
    def wanted(self) -> str:
        return f"give integers, each from 1 to 2**{self.bits - 1} - 1"

    def normalize(self, path: str, value: object) -> tuple[int, ...]:
        items = _items(path, value, self)
        return tuple(self._number(f"{path}[{i}]", item) for i, item in enumerate(items))

    def _number(self, path: str, item: object) -> int:
        plain = _plain(item)
        try:
            number = 0 if isinstance(plain, bool) else operator.index(plain)  # type: ignore[arg-type]
        except TypeError:
            number = 0
        if not 1 <= number < 2 ** (self.bits - 1):
            raise InvalidRequestError.of(path, f"is {_shown(item)}; {self.wanted}")
        return number


def attribute(rule: Attribute) -> dict[str, Attribute]:
    """Make the metadata of a dataclass field that holds an attribute."""
    return {_METADATA_KEY: rule}


def rule_of(field: Field[object]) -> Attribute:
    """Read the rule back from a dataclass field."""
    rule: Attribute = field.metadata[_METADATA_KEY]
    return rule


def unknown_name(path: str, name: str, known: Iterable[str]) -> InvalidRequestError:
    """Make the error for an attribute that an operator does not have."""
    names = tuple(known)
    hint = _did_you_mean(name, names)
    return InvalidRequestError.of(
        f"{path}.{name}", f"is not an attribute; {path} has {', '.join(names)}{hint}"
    )


def _items(path: str, value: Any, rule: Floats | Integers) -> list[object]:
    unfit = isinstance(value, (str, bytes, Mapping, AbstractSet))
    try:
        items: list[object] = [] if unfit else list(islice(iter(value), rule.most + 1))
    except TypeError:
        unfit, items = True, []
    if unfit:
        wanted = f"{rule.wanted}, in a sequence"
        raise InvalidRequestError.of(path, f"is {_shown(value)}; {wanted}")
    if len(items) > rule.most:
        raise InvalidRequestError.of(path, f"has more than {rule.most} values; give one per axis")
    return items


def _plain(value: object) -> object:
    """Unwrap an array scalar, or an array without axes, of whichever library."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def _shown(value: object) -> str:
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits.
        text = "too long to show"
    return text if value is None else f"{text} ({type(value).__name__})"


def _alternatives(names: tuple[str, ...]) -> str:
    return " or ".join(repr(name) for name in names)


def _did_you_mean(name: str, known: tuple[str, ...]) -> str:
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower().replace("-", "_"), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
