"""Numbers and names of the schema, which no release may change; the SDK knows exactly these."""

import dataclasses
import pkgutil
import typing
from importlib import import_module

import pytest
from google.protobuf.descriptor import FieldDescriptor

from gradwire import ops, v1
from gradwire._wire import framing
from gradwire.ops._base import rule_of
from gradwire.tensors import DTYPES
from gradwire.v1 import gradient_service_pb2_grpc
from support.oracles.golden_bytes import GOLDEN, of_hex

FILES = [
    import_module(f"gradwire.v1.{each.name}")
    for each in pkgutil.iter_modules(v1.__path__)
    if each.name.endswith("_pb2")
]


def messages(container):
    for message in container.values():
        if not message.GetOptions().map_entry:
            yield message
            yield from messages(message.nested_types_by_name)


MESSAGES = [each for file in FILES for each in messages(file.DESCRIPTOR.message_types_by_name)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.name)
def test_bulk_bytes_are_field_15_and_last(message):
    numbers = {field.number for field in message.fields}
    bulk = {field.number for field in message.fields if field.type == FieldDescriptor.TYPE_BYTES}
    assert bulk == numbers & {15}
    assert not bulk or max(numbers) == 15


MEMBERS = list(v1.Operator.DESCRIPTOR.oneofs_by_name["operator"].fields)
KINDS = list(ops.OPERATORS.values())
TYPES = {
    getattr(FieldDescriptor, f"CPPTYPE_{name.upper()}"): name
    for name in ("bool", "float", "double", "int64", "int32")
}


def test_v1_exports_every_message_enum_and_service():
    schema = set()
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


def test_every_member_of_operator_has_one_class_in_its_order():
    assert [member.name for member in MEMBERS] == list(ops.OPERATORS)
    assert [kind.name for kind in KINDS] == list(ops.OPERATORS)
    assert [member.number for member in MEMBERS] == sorted(member.number for member in MEMBERS)
    for kind in KINDS:
        assert getattr(ops, kind.__name__) is kind
        assert kind.__name__ in ops.__all__


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_class_has_the_fields_of_its_message_in_their_order(member):
    kind = ops.OPERATORS[member.name]
    schema = [field.name for field in member.message_type.fields]
    fixed = {name for name, _ in kind.fixed}
    assert fixed <= set(schema)
    own = [name for name in schema if name not in fixed]
    assert [field.name for field in dataclasses.fields(kind)] == own


def schema_words(field):
    """Return the names of an enum's valid values."""
    return [value.name for value in field.enum_type.values if value.number]


ENUM_FIELDS = [
    (ops.OPERATORS[member.name], field)
    for member in MEMBERS
    for field in (member.message_type.fields if member.message_type else ())
    if field.enum_type is not None
]


@pytest.mark.parametrize(("kind", "field"), ENUM_FIELDS, ids=lambda each: each.name)
def test_the_words_of_an_attribute_are_the_values_of_its_enum(kind, field):
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
    assert set(words) <= set(flat_literals(typing.get_type_hints(kind)[field.name]))


def flat_literals(hint):
    args = typing.get_args(hint)
    return [a for arg in args for a in ([arg] if isinstance(arg, str) else flat_literals(arg))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_description_states_each_attribute_as_the_schema_has_it(kind):
    info, counterpart = ops.describe(kind), ops.OPERATORS[kind.counterpart]
    assert (info.name, info.gradient) == (kind.name, kind.gradient)
    # A gradient and its forward name each other.
    assert (info.counterpart, counterpart.counterpart) == (counterpart.name, kind.name)
    assert counterpart.gradient is not kind.gradient
    assert info.summary.endswith(".")
    assert "https://" in info.source
    assert list(info.data_types) == list(v1.DataType.values())[1:]
    message = v1.Operator.DESCRIPTOR.fields_by_name[kind.name].message_type
    assert message is not None
    for attribute, each in zip(info.attributes, dataclasses.fields(kind), strict=True):
        field = message.fields_by_name[attribute.name]
        repeated = isinstance(field.default_value, list)
        if field.enum_type is None:
            assert attribute.type == TYPES[field.cpp_type] + ("[]" if repeated else "")
            assert not attribute.allowed_values
            # Absent is told from zero exactly where the default is another.
            assert repeated or field.has_presence == (each.default != 0)
        else:
            assert attribute.type == "enum"
            assert list(attribute.allowed_values) == schema_words(field)
        assert attribute.description.endswith(".")
        assert attribute.required == (attribute.default_value == "")
        if attribute.allowed_values and not attribute.required:
            assert attribute.default_value.startswith((*attribute.allowed_values, "not given"))


def test_every_element_type_of_the_schema_has_a_dtype_of_its_width():
    assert list(DTYPES) == list(v1.DataType.values())[1:]
    for number, dtype in DTYPES.items():
        assert v1.DataType.Name(number).endswith(str(dtype.itemsize * 8))
    assert len({dtype.name for dtype in DTYPES.values()}) == len(DTYPES)


@pytest.mark.parametrize(("message", "text"), GOLDEN.values(), ids=list(GOLDEN))
def test_a_message_has_the_bytes_that_its_schema_gives_it(message, text):
    assert message.SerializeToString(deterministic=True) == of_hex(text)
    assert type(message).FromString(of_hex(text)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.name)
def test_every_field_of_every_message_is_in_the_table(message):
    name = message.full_name.removeprefix("gradwire.v1.")
    examples = [each for key, (each, _) in GOLDEN.items() if key.split()[0] == name]
    assert examples
    shown = {field.number for each in examples for field, _ in each.ListFields()}
    assert shown == {field.number for field in message.fields}


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 1), (1, 1), (300, 1), (2**63 - 1, 1), (0, 125), (0, 126), (0, 128), (2**20, 300)],
)
def test_chunks_framed_by_hand_have_the_bytes_of_messages(offset, length):
    data = b"\x05" * length
    message = v1.EvaluateStreamRequest(chunk=v1.Chunk(offset=offset, data=data))
    framed = message.SerializeToString()
    assert framing.chunk_frame(offset, data) == framed
    assert framing.read_chunk(framed) == (offset, memoryview(data))
