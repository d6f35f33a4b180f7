"""Base of the operators: rules of attributes, and the checks of values.

Client and server both build the dataclasses of this package, so a wrong value meets the same check
and the same message on either side. ListOperators reports the same facts to other languages.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import reprlib
import struct
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from operator import index
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from gradwire.errors import InvalidRequestError
from gradwire.tensors import MAX_RANK

T = TypeVar("T")

_METADATA_KEY = "attribute"
# Limit of a cubic kernel's slope at distance 1: weights stay below 2**6 times as much, which
# float32 holds with room for their sums.
SLOPE_BITS = 120
# Of struct, and in the schema.
_FLOATS = {32: ("f", "float"), 64: ("d", "double")}
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """The rule of one attribute; by itself that of True or False.

    description   meaning, unit and rule, for people
    default_text  meaning of an absent attribute; empty where the dataclass's default says it
    optional      whether None is one of its values
    """

    description: str
    default_text: str = ""
    optional: bool = False

    @property
    def type_name(self) -> str:
        """Type: "enum", or the schema's name of a number.

        An array has "[]" behind it.
        """
        return "bool"

    @property
    def wanted(self) -> str:
        """Values that would do, as the end of an error message."""
        return "give True or False"

    def normalize(self, path: str, value: Any) -> Any:
        """Return the value in its stored form.

        Raises InvalidRequestError if it breaks the rule.
        """
        bare = plain(value)
        if not isinstance(bare, bool):
            raise self.refusal(path, value)
        return bare

    def refusal(self, path: str, value: object) -> InvalidRequestError:
        """Make the error for a value that breaks the rule."""
        return InvalidRequestError.of(path, f"is {shown(value)}; {self.wanted}")


@dataclass(frozen=True, kw_only=True)
class Choice(Attribute):
    """One string of a closed set, an enum on the wire.

    allowed   the strings, one for each valid value of the enum, in its order
    synonyms  other accepted names, by which one of the strings is meant
    """

    allowed: tuple[str, ...]
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def type_name(self) -> str:
        return "enum"

    @property
    def wanted(self) -> str:
        return f"give {' or '.join(map(self._with_synonyms, self.allowed))}"

    def _with_synonyms(self, name: str) -> str:
        others = [repr(other) for other, meant in self.synonyms.items() if meant == name]
        return f"{name!r} (also {', '.join(others)})" if others else repr(name)

    def normalize(self, path: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise self.refusal(path, value)
        value = self.synonyms.get(value, value)
        if value not in self.allowed:
            hint = did_you_mean(value, self.allowed, self.synonyms)
            raise InvalidRequestError.of(path, f"is {value!r}; {self.wanted}{hint}")
        # An equal plain string: a subclass, such as an enum's member, would not survive pickling.
        return self.allowed[self.allowed.index(value)]


@dataclass(frozen=True, kw_only=True)
class Number(Attribute):
    """One number, or a sequence of numbers.

    A number is finite and rounded to the float of the wire, or an integer of so many bits.

    positive   whether a float must be above 0
    most_bits  a float's magnitude is at most 2**most_bits; None for any magnitude of the type
    least      smallest integer
    most       most numbers of a sequence; None for one number
    single     whether one number may stand without a sequence, for all axes
    """

    bits: int = 32
    integer: bool = False
    positive: bool = False
    most_bits: int | None = None
    least: int = 1
    most: int | None = None
    single: bool = False

    @property
    def type_name(self) -> str:
        name = f"int{self.bits}" if self.integer else _FLOATS[self.bits][1]
        return name if self.most is None else f"{name}[]"

    @property
    def wanted(self) -> str:
        if self.integer:
            return f"give integers, each from {self.least} to 2**{self.bits - 1} - 1"
        sign = "finite and above 0" if self.positive else "finite"
        if self.most is not None:
            return f"give numbers, each {sign} in float{self.bits}"
        most = self.most_bits
        bound = "" if most is None else f", from -2**{most} to 2**{most}"
        return f"give a number, {sign} in float{self.bits}{bound}"

    def normalize(self, path: str, value: Any) -> Any:
        if self.most is None:
            return self._one(path, value)
        bare = plain(value)
        # Arrays with axes have a number's methods too.
        is_number = hasattr(bare, "__index__" if self.integer else "__float__")
        if self.single and is_number and not hasattr(bare, "__iter__"):
            return (self._one(path, value),)
        items: list[object] | None = None
        unfit = isinstance(value, (str, bytes, Mapping, AbstractSet))
        if not unfit:
            with suppress(TypeError):
                items = list(islice(iter(value), self.most + 1))
        if items is None:
            wanted = f"{self.wanted}, in a sequence"
            raise InvalidRequestError.of(path, f"is {shown(value)}; {wanted}")
        if len(items) > self.most:
            raise InvalidRequestError.of(
                path, f"has more than {self.most} values; give one per axis"
            )
        return tuple(self._one(f"{path}[{i}]", item) for i, item in enumerate(items))

    def _one(self, path: str, value: object) -> float:
        """Return the number as stored."""
        bare: Any = plain(value)
        fits = False
        number: float = 0
        with suppress(OverflowError, TypeError, ValueError, struct.error):
            if self.integer and not isinstance(bare, bool):
                number = index(bare)
                fits = self.least <= number < 2 ** (self.bits - 1)
            elif hasattr(bare, "__float__") and not isinstance(bare, bool):
                form = _FLOATS[self.bits][0]
                (number,) = struct.unpack(form, struct.pack(form, bare))
                most = math.inf if self.most_bits is None else 2.0**self.most_bits
                fits = math.isfinite(number) and abs(number) <= most
                fits &= number > 0 or not self.positive
        if not fits:
            raise self.refusal(path, value)
        return number


def attribute(description: str, *, default: Any = MISSING, **rule: Any) -> Any:
    """Make an attribute's dataclass field; without a default it is required.

    rule  fields of its Attribute that the annotation does not determine
    """
    return dataclasses.field(default=default, metadata={"description": description, **rule})


def sequence(
    description: str, *, most: int = MAX_RANK, default_text: str = "not given", **rule: Any
) -> Any:
    """Make the field of an attribute with numbers for axes, or none."""
    return attribute(description, default=(), most=most, default_text=default_text, **rule)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attribute,))
def operator_class(kind: type[T]) -> type[T]:
    """Make the dataclass of an operator.

    An attribute's annotation determines the kind of its rule.
    """
    hints = get_type_hints(kind)
    for name, field in vars(kind).items():
        if isinstance(field, Field):
            rule = _rule(hints[name], **field.metadata)
            field.metadata = MappingProxyType({_METADATA_KEY: rule})
    return dataclass(frozen=True, slots=True, kw_only=True, repr=False)(kind)


def _rule(hint: Any, **options: Any) -> Attribute:
    kinds = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    if get_origin(kinds[-1]) is Sequence:
        integer = get_args(kinds[-1]) != (float,)
        return Number(integer=integer, single=len(kinds) > 1, **options)
    optional = NoneType in kinds
    if get_origin(kinds[0]) is Literal:
        return Choice(allowed=get_args(kinds[0]), optional=optional, **options)
    return (Attribute if kinds[0] is bool else Number)(optional=optional, **options)


def rule_of(field: Field[object]) -> Attribute:
    """Read the rule back from a dataclass field."""
    rule: Attribute = field.metadata[_METADATA_KEY]
    return rule


def shortened(field: Field[Any], value: Any) -> Any:
    """Return an attribute's value with the shortest floats.

    Their digits identify the values. A float32 comes as the float64 nearest to its shortest
    decimal: 0.1, not its exact value.
    """
    if rule_of(field).type_name.partition("[]")[0] != "float":
        return value
    if isinstance(value, tuple):
        return tuple(map(_shortest, cast("tuple[float, ...]", value)))
    return _shortest(value)


def is_default(field: Field[Any], value: object) -> bool:
    """Whether a value has the bits of the field's default.

    -0.0 equals 0.0, but has other bits.
    """
    return bool(value == field.default) and repr(value) == repr(field.default)


def unknown_name(path: str, name: str, known: Iterable[str]) -> InvalidRequestError:
    """Make the error for an attribute that an operator does not have."""
    names = tuple(known)
    hint = did_you_mean(name, names)
    return InvalidRequestError.of(
        f"{path}.{name}",
        f"is not an attribute; {path.rpartition('.')[2]} has {', '.join(names)}{hint}",
    )


def _shortest(value: float) -> float:
    return float(str(np.float32(value)))


_WRAPPER = textwrap.TextWrapper(
    96, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
)


@dataclass(frozen=True, repr=False)
class Operator:
    """One operator of one framework with its attributes.

    It is a value that can be compared and pickled. Making one raises InvalidRequestError where an
    attribute is missing, unknown or breaks its rule; its `field` is the attribute's path, such as
    "operator.dml_resample_grad.scales[2]".

    name             member of the wire's Operator message
    source           the framework's own name for it, and where it is documented
    gradient         whether it is a gradient; otherwise it is a forward operator
    counterpart      name of a gradient's forward, of a forward's gradient
    min_rank         fewest axes of its tensors
    max_rank         most axes of its tensors
    output_required  whether the output's shape must be given, since attributes do not determine it
    fixed            attributes of its message that have only this one valid value
    """

    __slots__ = ()

    name: ClassVar[str]
    source: ClassVar[str]
    gradient: ClassVar[bool] = True
    counterpart: ClassVar[str]
    min_rank: ClassVar[int] = 1
    max_rank: ClassVar[int] = MAX_RANK
    output_required: ClassVar[bool] = True
    fixed: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __new__(cls, /, *positional: object, **attributes: object) -> Self:
        """Refuse unknown and missing names in the same words as other errors."""
        if positional:  # __init__ raises the right error.
            return object.__new__(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in attributes:
            if name not in fields:
                raise unknown_name(f"operator.{cls.name}", name, fields)
        for name, field in fields.items():
            if field.default is MISSING and name not in attributes:
                raise cls._refused(name, f"is missing; {rule_of(field).wanted}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            rule, value = rule_of(field), getattr(self, field.name)
            if not (value is None and rule.optional):
                value = rule.normalize(self.path(field.name), value)
                object.__setattr__(self, field.name, value)
        self._check_together()

    def __repr__(self) -> str:
        given = [
            f"{field.name}={shortened(field, value)!r}"
            for field in dataclasses.fields(self)
            if not is_default(field, value := getattr(self, field.name))
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), **self._values()), ()

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def path(cls, attribute: str) -> str:
        """Return the path of an attribute in a request, for errors."""
        return f"operator.{cls.name}.{attribute}"

    @classmethod
    def ranks(cls) -> str:
        """Return the number of its tensors' axes: "4", or "3 to 5"."""
        few, many = cls.min_rank, cls.max_rank
        return f"{few}" if few == many else f"{few} to {many}"

    @classmethod
    def _refused(cls, attribute: str, description: str) -> InvalidRequestError:
        """Make the error for an attribute's value."""
        return InvalidRequestError.of(cls.path(attribute), description)

    def _check_together(self) -> None:
        """Check rules between attributes, each of which is valid by itself."""

    def shown(self) -> dict[str, Any]:
        """Return the attributes with the shortest floats that identify their values."""
        fields = dataclasses.fields(self)
        return {field.name: shortened(field, getattr(self, field.name)) for field in fields}

    def linear(self) -> Operator:
        """Return the operator without its constant term: 0 goes to 0."""
        return self

    def for_output(self, output_shape: Sequence[int]) -> Operator:
        """Return the operator with sizes for an output of this shape.

        Attributes for sizes are set only if the operator needs them. Fields that are already set
        stay unchanged, even if they disagree.
        """
        del output_shape
        return self

    def for_counterpart(self) -> dict[str, Any]:
        """Return attributes as the counterpart means them.

        The counterpart may not have all of them.
        """
        return self._values() | dict(self.fixed)


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
        lines += _WRAPPER.wrap(f"{rule.description}{allowed} {ends}")
    return "\n".join(lines)


def plain(value: object) -> object:
    """Unwrap an array scalar, or an array without axes, of any library."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def shown(value: object) -> str:
    """Write a value as it came, with its type."""
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits.
        text = "too long to show"
    return text if value is None else f"{text} ({type(value).__name__})"


def did_you_mean(name: str, known: Iterable[str], synonyms: Mapping[str, str] = _NONE) -> str:
    """Return a hint at a similar valid name, or nothing.

    synonyms  other accepted words, by which one of the known is meant
    """
    by_lower = {word.lower(): word for word in (*known, *synonyms)}
    close = get_close_matches(name.lower().replace("-", "_"), by_lower, n=1)
    word = by_lower[close[0]] if close else ""
    return f"; did you mean {synonyms.get(word, word)!r}?" if close else ""
