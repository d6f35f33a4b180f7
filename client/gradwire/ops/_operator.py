"""The base of every operator: checks its attributes when it is made."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Self

from gradwire.errors import InvalidRequestError
from gradwire.ops._attributes import Choice, is_default, rule_of, told, unknown_name

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

        What they tell already stays, whether it agrees or not.
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
