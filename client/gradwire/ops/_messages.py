"""Operators to and from the wire's Operator message, led by its descriptors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import EnumValueDescriptor
from google.protobuf.message import Message

from gradwire import v1
from gradwire.errors import InvalidRequestError
from gradwire.ops import dml, jax, onednn, onnx, openvino, tensorflow, torch
from gradwire.ops._base import Choice, Operator, documentation, is_default, rule_of
from gradwire.tensors import DTYPES

# A framework is added here, in the order of its operators' numbers in the schema.
OPERATORS: Mapping[str, type[Operator]] = {
    kind.name: kind
    for framework in (dml, onednn, torch, onnx, tensorflow, jax, openvino)
    for kind in framework.OPERATORS
}
for _kind in OPERATORS.values():
    _kind.__doc__ = documentation(_kind)


# Valid values of an enum of the schema, by the words that the attribute takes for them.
_Enum = dict[str, EnumValueDescriptor]


def to_message(operator: Operator) -> v1.Operator:
    """Encode an operator.

    Attributes that hold their default are left out, so that a server which does not know one yet
    still takes the message.
    """
    values: dict[str, Any] = {}
    enums = _ENUMS[operator.name]
    for field in dataclasses.fields(operator):
        value = getattr(operator, field.name)
        if not is_default(field, value):
            enum = enums.get(field.name)
            values[field.name] = value if enum is None else enum[value].number
    attributes = type(getattr(v1.Operator(), operator.name))(**values)
    return v1.Operator(**{operator.name: attributes})


def from_message(message: v1.Operator) -> Operator:
    """Decode and check an operator.

    Absent attributes take their defaults. Fields of a newer schema are ignored.

    Raises InvalidRequestError if it is unset or invalid.
    """
    name = message.WhichOneof("operator")
    if name is None:
        raise InvalidRequestError.of("operator", f"is not set; set one of {', '.join(OPERATORS)}")
    kind = OPERATORS[name]
    attributes: Message = getattr(message, name)
    values = {field.name: value for field, value in attributes.ListFields()}
    for field_name, enum in _ENUMS[name].items():
        if field_name in values:
            values[field_name] = _word(enum, kind.path(field_name), values[field_name])
    for field_name, only in kind.fixed:
        given = values.pop(field_name, only)
        if given != only:
            wanted = f"{name} takes {only!r} only"
            raise InvalidRequestError.of(kind.path(field_name), f"is {given!r}; {wanted}")
    return kind(**values)


def adjoint(operator: Operator) -> Operator:
    """Return the operator that takes this one's output gradients to input gradients.

    For a forward that is its gradient, for a gradient its forward, without a constant that it adds
    (ONNX's extrapolation_value). An operator with `follow` and its counterpart are adjoint to each
    other only with follow="forward_adjoint", which the adjoint of a forward has.
    """
    kind = OPERATORS[operator.counterpart]
    names = {field.name for field in dataclasses.fields(kind)}
    attributes = operator.for_counterpart()
    found = kind(**{name: attributes[name] for name in attributes.keys() & names})
    return found.linear() if operator.gradient else found


def describe(kind: type[Operator]) -> v1.OperatorInfo:
    """Return an operator's name, attributes and needs, for clients in any language."""
    return v1.OperatorInfo(
        name=kind.name,
        summary=(kind.__doc__ or "").partition("\n")[0],
        source=kind.source,
        gradient=kind.gradient,
        counterpart=kind.counterpart,
        min_rank=kind.min_rank,
        max_rank=kind.max_rank,
        data_types=DTYPES,
        attributes=[
            _describe_attribute(field, _ENUMS[kind.name].get(field.name))
            for field in dataclasses.fields(kind)
        ],
        output_required=kind.output_required,
    )


def _describe_attribute(field: dataclasses.Field[object], enum: _Enum | None) -> v1.AttributeInfo:
    rule = rule_of(field)
    default = rule.default_text
    if enum is not None and isinstance(field.default, str):
        default = enum[field.default].name
    elif isinstance(field.default, (bool, int, float)):
        default = str(field.default).lower()
    return v1.AttributeInfo(
        name=field.name,
        type=rule.type_name,
        required=field.default is dataclasses.MISSING,
        default_value=default,
        allowed_values=[value.name for value in (enum or {}).values()],
        description=rule.description,
    )


def _word(enum: _Enum, path: str, number: int) -> str:
    for word, value in enum.items():
        if value.number == number:
            return word
    wanted = ", ".join(f"{value.name} = {value.number}" for value in enum.values())
    raise InvalidRequestError.of(path, f"is {number}, which is not known here; give {wanted}")


def _enums_of(kind: type[Operator]) -> dict[str, _Enum]:
    """Match an operator's enums with the words of its attributes.

    Both have the same order.
    """
    message = v1.Operator.DESCRIPTOR.fields_by_name[kind.name].message_type
    rules = {field.name: rule_of(field) for field in dataclasses.fields(kind)}
    enums: dict[str, _Enum] = {}
    for field in message.fields if message is not None else ():
        if field.enum_type is not None:
            unset, *values = field.enum_type.values
            rule, prefix = rules.get(field.name), unset.name.removesuffix("UNSPECIFIED")
            words = (
                rule.allowed
                if isinstance(rule, Choice)
                else [value.name.removeprefix(prefix).lower() for value in values]
            )
            enums[field.name] = dict(zip(words, values, strict=True))
    return enums


_ENUMS = {name: _enums_of(kind) for name, kind in OPERATORS.items()}
