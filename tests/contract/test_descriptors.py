"""The SDK knows everything that is in the schema, and nothing else."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from google.protobuf.descriptor import FieldDescriptor

from contract.schema import FILES
from gradwire import ops, v1
from gradwire.ops._base import rule_of
from gradwire.tensors import DTYPES, MAX_RANK
from gradwire.v1 import gradient_service_pb2_grpc

MEMBERS = list(v1.Operator.DESCRIPTOR.oneofs_by_name["operator"].fields)
KINDS = list(ops.OPERATORS.values())
TYPES = {
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_INT32: "int32",
}


def is_repeated(field: typing.Any) -> bool:
    return isinstance(field.default_value, list)


def test_v1_exports_every_message_enum_and_service() -> None:
    schema: set[str] = set()
    for module in FILES:
        schema.update(module.DESCRIPTOR.message_types_by_name)
        schema.update(module.DESCRIPTOR.enum_types_by_name)
        for service in module.DESCRIPTOR.services_by_name:
            schema |= {f"{service}Stub", f"{service}Servicer", f"add_{service}Servicer_to_server"}
    assert set(v1.__all__) == schema
    for name in schema:
        made_by_service = hasattr(gradient_service_pb2_grpc, name)
        home = gradient_service_pb2_grpc if made_by_service else v1
        assert getattr(v1, name) is getattr(home, name)


def test_every_member_of_operator_has_one_class_in_its_order() -> None:
    assert [member.name for member in MEMBERS] == list(ops.OPERATORS)
    assert [kind.name for kind in KINDS] == list(ops.OPERATORS)
    assert [member.number for member in MEMBERS] == sorted(member.number for member in MEMBERS)


def test_ops_exports_every_operator() -> None:
    for kind in KINDS:
        assert getattr(ops, kind.__name__) is kind
        assert kind.__name__ in ops.__all__


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_class_has_the_fields_of_its_message_in_their_order(member: typing.Any) -> None:
    kind = ops.OPERATORS[member.name]
    schema = [field.name for field in member.message_type.fields]
    fixed = [name for name, _ in kind.fixed]
    assert [field.name for field in dataclasses.fields(kind)] == [
        name for name in schema if name not in fixed
    ]
    assert set(fixed) <= set(schema)


def enum_fields() -> list[tuple[type[ops.Operator], typing.Any]]:
    return [
        (ops.OPERATORS[member.name], field)
        for member in MEMBERS
        for field in (member.message_type.fields if member.message_type else ())
        if field.enum_type is not None
    ]


def schema_words(field: typing.Any) -> list[str]:
    """Return the names of an enum's valid values."""
    return [value.name for value in field.enum_type.values if value.number]


@pytest.mark.parametrize(("kind", "field"), enum_fields(), ids=lambda each: each.name)
def test_the_words_of_an_attribute_are_the_values_of_its_enum(
    kind: type[ops.Operator], field: typing.Any
) -> None:
    only = dict(kind.fixed).get(field.name)
    if only is not None:
        assert sum(name.endswith(f"_{only.upper()}") for name in schema_words(field)) == 1
        return
    rule = next(rule_of(each) for each in dataclasses.fields(kind) if each.name == field.name)
    words = typing.cast("typing.Any", rule).allowed
    assert [f"_{word.upper().replace('-', '_')}" for word in words] == [
        name[-len(word) - 1 :] for word, name in zip(words, schema_words(field), strict=True)
    ]
    # One Literal, and beside it the synonyms.
    hints = typing.get_type_hints(kind)
    assert set(words) <= set(flat_literals(hints[field.name]))


def flat_literals(hint: typing.Any) -> list[str]:
    args = typing.get_args(hint)
    return [a for arg in args for a in ([arg] if isinstance(arg, str) else flat_literals(arg))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_gradient_and_its_forward_name_each_other(kind: type[ops.Operator]) -> None:
    counterpart = ops.OPERATORS[kind.counterpart]
    assert counterpart.counterpart == kind.name
    assert counterpart.gradient is not kind.gradient


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_description_states_each_attribute_as_the_schema_has_it(
    kind: type[ops.Operator],
) -> None:
    info = ops.describe(kind)
    assert (info.name, info.gradient, info.counterpart) == (
        kind.name,
        kind.gradient,
        kind.counterpart,
    )
    assert info.summary.endswith(".")
    assert "https://" in info.source
    assert list(info.data_types) == list(v1.DataType.values())[1:]
    message = v1.Operator.DESCRIPTOR.fields_by_name[kind.name].message_type
    assert message is not None
    for attribute in info.attributes:
        field = message.fields_by_name[attribute.name]
        if field.enum_type is None:
            assert attribute.type == TYPES[field.cpp_type] + ("[]" if is_repeated(field) else "")
            assert not attribute.allowed_values
        else:
            assert attribute.type == "enum"
            assert list(attribute.allowed_values) == schema_words(field)
        assert attribute.description.endswith(".")
        assert attribute.required == (attribute.default_value == "")
        known = attribute.allowed_values
        assert (
            not known
            or attribute.required
            or attribute.default_value.startswith((*known, "not given"))
        )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_absent_is_told_from_zero_exactly_where_the_default_is_another(
    kind: type[ops.Operator],
) -> None:
    message = v1.Operator.DESCRIPTOR.fields_by_name[kind.name].message_type
    assert message is not None
    for field in dataclasses.fields(kind):
        schema = message.fields_by_name[field.name]
        if schema.enum_type is None and not is_repeated(schema):
            assert schema.has_presence == (field.default != 0)


def test_ranks_and_needs_are_those_of_the_frameworks() -> None:
    facts = {kind.name: (kind.min_rank, kind.max_rank, kind.output_required) for kind in KINDS}
    known = {
        "dml_resample_grad": (1, MAX_RANK, True),
        "dml_resample_grad1": (1, MAX_RANK, True),
        "dml_resample": (1, MAX_RANK, True),
        "dml_resample2": (1, MAX_RANK, True),
        "interpolate_backward": (3, 5, True),
        "interpolate": (3, 5, False),
        "torch_upsample_backward": (3, 5, True),
        "torch_interpolate": (3, 5, False),
    }
    assert facts | known == facts


def test_every_element_type_of_the_schema_has_a_dtype_of_its_width() -> None:
    assert list(DTYPES) == list(v1.DataType.values())[1:]
    widths = {v1.DataType.Name(number): dtype.itemsize * 8 for number, dtype in DTYPES.items()}
    assert all(name.endswith(str(width)) for name, width in widths.items())
    assert len({dtype.name for dtype in DTYPES.values()}) == len(DTYPES)
