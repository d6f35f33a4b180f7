"""Base of the operators: rules of attributes, and the checks of values.

Client and server both build the dataclasses of this package, so a wrong value meets the same check
and the same message on either side. ListOperators reports the same facts to other languages.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import reprlib
import struct
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np

from gradwire.errors import InvalidRequestError

_METADATA_KEY = "attribute"
# Of a cubic kernel's slope at distance 1: weights stay below 2**6 times as much, which float32
# holds with room for their sums.
SLOPE_BITS = 120
_FLOAT_TYPES = {32: "float", 64: "double"}
_FORMATS = {32: "<f", 64: "<d"}


class Attribute(Protocol):
    """The rule of one attribute.

    type_name     "enum", or the schema's own name: "bool", "float", "double", "int64" or "int32",
                  with "[]" behind it for an array
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

    allowed   the strings, one for each valid value of the enum, in its order
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
        return f"give {alternatives(self.allowed)}"

    def normalize(self, path: str, value: object) -> str | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, str):
            raise InvalidRequestError.of(path, f"is {shown(value)}; {self.wanted}")
        synonyms = dict(self.synonyms)
        value = synonyms.get(value, value)
        if value not in self.allowed:
            hint = did_you_mean(
                value, {**synonyms, **dict(zip(self.allowed, self.allowed, strict=True))}
            )
            raise InvalidRequestError.of(path, f"is {value!r}; {self.wanted}{hint}")
        # An equal plain string: a subclass, such as an enum's member, would not survive pickling.
        return self.allowed[self.allowed.index(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """True or False; None too where absent means something of its own.

    default_text  what holds where it is None
    """

    description: str
    default_text: str = ""
    optional: bool = False

    @property
    def type_name(self) -> str:
        return "bool"

    @property
    def wanted(self) -> str:
        return "give True or False"

    def normalize(self, path: str, value: object) -> bool | None:
        bare = plain(value)
        if bare is None and self.optional:
            return None
        if not isinstance(bare, bool):
            raise InvalidRequestError.of(path, f"is {shown(value)}; {self.wanted}")
        return bare


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One finite number, rounded to a float of so many bits as the wire carries it.

    optional      whether None is one of its values
    default_text  what holds where it is None
    most_bits     its magnitude is at most 2**most_bits; None for what the type holds
    """

    bits: Literal[32, 64]
    description: str
    default_text: str = ""
    positive: bool = False
    optional: bool = False
    most_bits: int | None = None

    @property
    def type_name(self) -> str:
        return _FLOAT_TYPES[self.bits]

    @property
    def wanted(self) -> str:
        bound = (
            "" if self.most_bits is None else f", from -2**{self.most_bits} to 2**{self.most_bits}"
        )
        return f"give a number, {_finite(self)}{bound}"

    def normalize(self, path: str, value: object) -> float | None:
        if value is None and self.optional:
            return None
        number = _number(path, value, self)
        if self.most_bits is not None and abs(number) > 2.0**self.most_bits:
            raise InvalidRequestError.of(path, f"is {shown(value)}; {self.wanted}")
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Floats:
    """Finite numbers, at most `most` of them, rounded to floats of so many bits as the wire does.

    single  whether one number may stand without a sequence, for all axes
    """

    most: int
    description: str
    default_text: str
    positive: bool
    bits: Literal[32, 64] = 32
    single: bool = False

    @property
    def type_name(self) -> str:
        return f"{_FLOAT_TYPES[self.bits]}[]"

    @property
    def wanted(self) -> str:
        return f"give numbers, each {_finite(self)}"

    def normalize(self, path: str, value: object) -> tuple[float, ...]:
        if self.single and _is_single(value, "__float__"):
            return (_number(path, value, self),)
        items = _items(path, value, self)
        return tuple(_number(f"{path}[{i}]", item, self) for i, item in enumerate(items))


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Integers, each at least `least`, at most `most` of them, in `bits` bits with sign.

    single  whether one integer may stand without a sequence, for all axes
    """

    most: int
    description: str
    default_text: str
    bits: int
    least: int = 1
    single: bool = False

    @property
    def type_name(self) -> str:
        return f"int{self.bits}[]"

    @property
    def wanted(self) -> str:
        return f"give integers, each from {self.least} to 2**{self.bits - 1} - 1"

    def normalize(self, path: str, value: object) -> tuple[int, ...]:
        if self.single and _is_single(value, "__index__"):
            return (self._number(path, value),)
        items = _items(path, value, self)
        return tuple(self._number(f"{path}[{i}]", item) for i, item in enumerate(items))

    def _number(self, path: str, item: object) -> int:
        bare = plain(item)
        try:
            number = operator.index(bare)  # type: ignore[arg-type]
        except TypeError:
            number = None
        fits = number is not None and self.least <= number < 2 ** (self.bits - 1)
        if number is None or isinstance(bare, bool) or not fits:
            raise InvalidRequestError.of(path, f"is {shown(item)}; {self.wanted}")
        return number


def attribute(rule: Attribute) -> dict[str, Attribute]:
    """Make the metadata of a dataclass field that holds an attribute."""
    return {_METADATA_KEY: rule}


def rule_of(field: Field[object]) -> Attribute:
    """Read the rule back from a dataclass field."""
    rule: Attribute = field.metadata[_METADATA_KEY]
    return rule


def told(field: Field[Any], value: Any) -> Any:
    """Return an attribute's value for people: floats with the digits that tell them apart.

    A float32 comes as the float64 that is nearest to its shortest decimal: 0.1, not what it is.
    """
    rule = rule_of(field)
    if value is None or not isinstance(rule, Number | Floats) or rule.bits == 64:  # noqa: PLR2004
        return value
    return tuple(map(_shortest, value)) if isinstance(rule, Floats) else _shortest(value)


def is_default(field: Field[Any], value: object) -> bool:
    """Whether a value has the bits of the field's default; -0.0 equals 0.0 and has not."""
    return bool(value == field.default) and repr(value) == repr(field.default)


def unknown_name(path: str, name: str, known: Iterable[str]) -> InvalidRequestError:
    """Make the error for an attribute that an operator does not have."""
    names = tuple(known)
    hint = did_you_mean(name, dict(zip(names, names, strict=True)))
    return InvalidRequestError.of(
        f"{path}.{name}",
        f"is not an attribute; {path.rpartition('.')[2]} has {', '.join(names)}{hint}",
    )


def _items(path: str, value: Any, rule: Floats | Integers) -> list[object]:
    unfit = isinstance(value, (str, bytes, Mapping, AbstractSet))
    try:
        items: list[object] = [] if unfit else list(islice(iter(value), rule.most + 1))
    except TypeError:
        unfit, items = True, []
    if unfit:
        wanted = f"{rule.wanted}, in a sequence"
        raise InvalidRequestError.of(path, f"is {shown(value)}; {wanted}")
    if len(items) > rule.most:
        raise InvalidRequestError.of(path, f"has more than {rule.most} values; give one per axis")
    return items


def _finite(rule: Number | Floats) -> str:
    sign = "finite and above 0" if rule.positive else "finite"
    return f"{sign} in float{rule.bits}"


def _number(path: str, item: object, rule: Number | Floats) -> float:
    bare = plain(item)
    if isinstance(bare, bool) or not hasattr(bare, "__float__"):
        raise InvalidRequestError.of(path, f"is {shown(item)}; {rule.wanted}")
    try:
        (rounded,) = struct.unpack(_FORMATS[rule.bits], struct.pack(_FORMATS[rule.bits], bare))
    except (OverflowError, TypeError, ValueError, struct.error):
        rounded = math.inf
    if not math.isfinite(rounded) or (rule.positive and rounded <= 0):
        raise InvalidRequestError.of(path, f"is {shown(item)}; {rule.wanted}")
    return float(rounded)


def _shortest(value: float) -> float:
    return float(str(np.float32(value)))


def _is_single(value: object, method: str) -> bool:
    """Whether a value is a number; arrays with axes have its methods too."""
    bare = plain(value)
    return hasattr(bare, method) and not hasattr(bare, "__iter__")


_WRAPPER = textwrap.TextWrapper(
    96, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
)


@dataclass(frozen=True, repr=False)
class Operator:
    """One operator of one framework with its attributes: a value that can be compared and pickled.

    Making one raises InvalidRequestError where an attribute is missing, unknown or breaks its rule;
    its `field` is the attribute's path, such as "operator.dml_resample_grad.scales[2]".

    name             member of the wire's Operator message
    source           the framework's own name for it, and where it is documented
    gradient         whether it is a gradient; otherwise it is a forward operator
    counterpart      name of a gradient's forward, of a forward's gradient
    min_rank         fewest axes of its tensors
    max_rank         most axes of its tensors
    output_required  whether the output's shape must be given, since attributes do not determine it
    fixed            attributes of its message that take this one value only
    """

    __slots__ = ()

    name: ClassVar[str]
    source: ClassVar[str]
    gradient: ClassVar[bool]
    counterpart: ClassVar[str]
    min_rank: ClassVar[int]
    max_rank: ClassVar[int]
    output_required: ClassVar[bool] = True
    fixed: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __new__(cls, *positional: object, **attributes: object) -> Self:
        """Refuse unknown and missing names in the words of every other refusal."""
        if positional:  # __init__ has the right words.
            return object.__new__(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in attributes:
            if name not in fields:
                raise unknown_name(f"operator.{cls.name}", name, fields)
        for name, field in fields.items():
            if field.default is MISSING and name not in attributes:
                raise InvalidRequestError.of(
                    f"operator.{cls.name}.{name}", f"is missing; {rule_of(field).wanted}"
                )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            path = self.path(field.name)
            value = rule_of(field).normalize(path, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        self._check_together()

    def __repr__(self) -> str:
        given = [
            f"{field.name}={told(field, value)!r}"
            for field in dataclasses.fields(self)
            if not is_default(field, value := getattr(self, field.name))
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __reduce__(self) -> tuple[object, ...]:
        attributes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _rebuild, (type(self), attributes)

    @classmethod
    def path(cls, attribute: str) -> str:
        """Return the path of an attribute in a request, for errors."""
        return f"operator.{cls.name}.{attribute}"

    @classmethod
    def ranks(cls) -> str:
        """Tell how many axes its tensors have: "4", or "3 to 5"."""
        few, many = cls.min_rank, cls.max_rank
        return f"{few}" if few == many else f"{few} to {many}"

    def _check_together(self) -> None:
        """Check rules between attributes; each attribute alone is in order."""

    def shown(self) -> dict[str, Any]:
        """Return the attributes for people: floats with no more digits than tell them apart."""
        fields = dataclasses.fields(self)
        return {field.name: told(field, getattr(self, field.name)) for field in fields}

    def linear(self) -> Operator:
        """Return the operator without what it adds whatever its input is: 0 goes to 0."""
        return self

    def for_output(self, output_shape: Sequence[int]) -> Operator:
        """Return the operator, told what shape its output has where attributes have to tell it.

        Fields that they already set stay unchanged, even if they disagree.
        """
        del output_shape
        return self

    def for_counterpart(self) -> dict[str, Any]:
        """Return attributes as the counterpart means them; it may not have all of them."""
        attributes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return attributes | dict(self.fixed)


def documentation(kind: type[Operator]) -> str:
    """Return an operator's docstring with its attributes, as their rules describe them."""
    lines = [inspect.cleandoc(kind.__doc__ or ""), "", "Attributes:"]
    for field in dataclasses.fields(kind):
        rule = rule_of(field)
        allowed = (
            f" One of {', '.join(map(repr, rule.allowed))}." if isinstance(rule, Choice) else ""
        )
        default = rule.default_text or repr(field.default)
        ends = "Required." if field.default is MISSING else f"Default: {default}."
        lines += ["", f"{field.name}: {rule.type_name}"]
        text = f"{rule.description}{allowed} {ends}"
        lines += _WRAPPER.wrap(text)
    return "\n".join(lines)


def _rebuild(kind: type[Operator], attributes: dict[str, object]) -> Operator:
    return kind(**attributes)


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
