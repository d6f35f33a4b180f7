"""Numbers, names and bytes of the schema, which no release may change; the SDK knows just these."""

import dataclasses
import pkgutil
import re
import typing
from importlib import import_module
from operator import attrgetter
from string import Template

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from gradwire import ops, v1
from gradwire._wire import framing
from gradwire.ops._base import rule_of
from gradwire.tensors import DTYPES
from gradwire.v1 import gradient_service_pb2_grpc
from support.oracles.dialect_tables import TABLES
from support.raw_calls import published_request

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


# The bytes of every message, written out by hand from the schema; every release writes the same.
# In a tag the number is shifted left by three; the low bits are 0 for a varint and 2 for bytes with
# their length before them: 08 is field 1 as a number, 12 is field 2 with a length, and 7a is field
# 15, the bulk bytes, with a length. A bar separates fields.
#
# A name that begins with the message's, the message as text, and its bytes.
# float32 on the wire is little-endian: 0.5 is 3f000000, 1.5 is 3fc00000, -0.5 is bf000000.
TABLE = r"""
TensorDescriptor := $tensor
= $TENSOR
TensorDescriptor largest size := data_type: DATA_TYPE_FLOAT64 sizes: 0x7fffffffffffffff
= 08 04 | 12 09 ff ff ff ff ff ff ff ff 7f
TensorDescriptor negative size := data_type: DATA_TYPE_BFLOAT16 sizes: -1
= 08 03 | 12 0a ff ff ff ff ff ff ff ff ff 01
DmlResample := interpolation_mode: DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR scales: [0.5, 1.5]
  input_pixel_offsets: 0.5 output_pixel_offsets: -0.5
  nearest_rounding: DML_NEAREST_ROUNDING_HALF_UP offset_convention: DML_OFFSET_CONVENTION_SWAPPED
= 08 01 | 12 08 00 00 00 3f 00 00 c0 3f | 1a 04 00 00 00 3f | 22 04 00 00 00 bf | 28 02 | 30 02
DmlResample2 := interpolation_mode: DML_INTERPOLATION_MODE_LINEAR scales: 0.5
  input_pixel_offsets: 0.5 output_pixel_offsets: -0.5
  rounding_direction: DML_AXIS_DIRECTION_DECREASING offset_convention: DML_OFFSET_CONVENTION_FORWARD
= 08 02 | 12 04 00 00 00 3f | 1a 04 00 00 00 3f | 22 04 00 00 00 bf | 28 02 | 30 01
Interpolate := mode: MODE_BILINEAR
  coordinate_transformation_mode: COORDINATE_TRANSFORMATION_MODE_ALIGN_CORNERS
  sizes: [112, 0x10000000000] scales: 1.5 data_format: DATA_FORMAT_NCX sizes_tensor: [112, 7]
= 08 03 | 10 02 | 1a 07 70 80 80 80 80 80 20 | 22 04 00 00 c0 3f | 28 01 | 32 02 70 07
Operator dml_resample := $operator
= $OPERATOR
Options :=
=
EvaluateRequest := request_id: "a" operator { $operator } input { $tensor } output { $tensor }
  options {} data: "\001\002"
= 0a 01 61 | 12 04 $OPERATOR | 1a 0b $TENSOR | 22 0b $TENSOR | 2a 00 | 7a 02 01 02
EvaluateRequest checked := request_id: "a" checksum: 0x12345678 data: "\001\002"
= 0a 01 61 | 75 78 56 34 12 | 7a 02 01 02
EvaluateResponse := request_id: "a" output { $tensor } data: "$nulls"
= 0a 01 61 | 12 0b $TENSOR | 7a c8 01 $NULLS
EvaluateResponse checked := request_id: "a" checksum: 1 data: "\001"
= 0a 01 61 | 75 01 00 00 00 | 7a 01 01
Chunk := offset: 300 checksum: 0 data: "\005"
= 08 ac 02 | 75 00 00 00 00 | 7a 01 05
Open := request_id: "a" operator { $operator } input { $tensor } output { $tensor } options {}
  resume_from: 0x10000000000 evaluation_digest: "d" max_chunk_bytes: 0x100000
  stop_before: 0x20000000000 checksum: 0xffffffff
= 0a 01 61 | 12 04 $OPERATOR | 1a 0b $TENSOR | 22 0b $TENSOR | 2a 00
| 30 80 80 80 80 80 20 | 3a 01 64 | 40 80 80 40 | 48 80 80 80 80 80 40 | 75 ff ff ff ff
Opened := output { $tensor } read_from_byte: 128 evaluation_digest: "d" max_chunk_bytes: 0x200000
  read_before_byte: 256 checksum: 2
= 0a 0b $TENSOR | 10 80 01 | 1a 01 64 | 20 80 80 80 01 | 28 80 02| 75 02 00 00 00
Error := code: 3 reason: ERROR_REASON_INVALID_DATA message: "m" metadata { key: "k" value: "v" }
  field_violations { field: "data" description: "bad" } retry_after { seconds: 1 nanos: 500000000 }
= 08 03 | 10 02 | 1a 01 6d | 22 06 0a 01 6b 12 01 76
| 2a 0b 0a 04 64 61 74 61 12 03 62 61 64 | 32 08 08 01 10 80 ca b5 ee 01
Error.FieldViolation := field: "data" description: "bad"
= 0a 04 64 61 74 61 | 12 03 62 61 64
EvaluateStreamRequest open := open { operator { $operator } }
= 0a 06 12 04 $OPERATOR
EvaluateStreamRequest chunk := chunk { offset: 300 data: "\005" }
= 12 06 08 ac 02 7a 01 05
EvaluateStreamResponse opened := opened { evaluation_digest: "d" }
= 0a 03 1a 01 64
EvaluateStreamResponse chunk := chunk { data: "\005" }
= 12 03 7a 01 05
EvaluateStreamResponse error := error { code: 14 }
= 1a 02 08 0e
EvaluateManyRequest := evaluation { request_id: "a" operator { $operator } data: "\001\002" }
= 0a 0d 0a 01 61 | 12 04 $OPERATOR | 7a 02 01 02
EvaluateManyResponse result := request_id: "a" result { request_id: "a" data: "\005" }
= 0a 01 61 | 12 06 0a 01 61 7a 01 05
EvaluateManyResponse error := request_id: "a" error { code: 14 }
= 0a 01 61 | 1a 02 08 0e
ListOperatorsRequest :=
=
ListOperatorsResponse := operators { name: "n" }
= 0a 03 0a 01 6e
OperatorInfo := name: "n" summary: "s" source: "o" gradient: true counterpart: "c" min_rank: 1
  max_rank: 8 data_types: [DATA_TYPE_FLOAT32, DATA_TYPE_FLOAT16] attributes { name: "a" }
  output_required: true
= 0a 01 6e | 12 01 73 | 1a 01 6f | 20 01 | 2a 01 63 | 30 01 | 38 08 | 42 02 01 02
| 4a 03 0a 01 61 | 50 01
AttributeInfo := name: "n" type: "t" required: true default_value: "d" allowed_values: ["a", "b"]
  description: "e"
= 0a 01 6e | 12 01 74 | 18 01 | 22 01 64 | 2a 01 61 | 2a 01 62 | 32 01 65
GetServerInfoRequest :=
=
SharedRange := handle: "h" offset: 64 length: 4
= 0a 01 68 | 10 40 | 18 04
EvaluateSharedRequest := evaluation { request_id: "r" } input { handle: "h" } output { length: 4 }
= 0a 03 0a 01 72 | 12 03 0a 01 68 | 1a 02 18 04
EvaluateSharedResponse := request_id: "r" output { sizes: 2 }
= 0a 01 72 | 12 03 12 01 02
GetServerInfoResponse := version: "v" numerics_version: "n" backend: "b" backend_reason: "r"
  operators: ["x", "y"] limits { max_rank: 8 } shared_memory: true backend_to_come: "c"
  checksums: true
= 0a 01 76 | 12 01 6e | 1a 01 62 | 22 01 72 | 2a 01 78 | 2a 01 79 | 32 02 08 08
| 38 01 | 42 01 63 | 48 01
Limits := max_rank: 8 max_elements: 0x1000000000 max_table_entries: 3 max_float32_axis: 4
  max_work: 5 max_unary_bytes: 6 max_chunk_bytes: 7 max_request_memory_bytes: 8
  max_memory_bytes: 9 max_streams: 10 stall_timeout { seconds: 60 } max_in_flight: 12
  max_message_bytes: 0x1000000
= 08 08 | 10 80 80 80 80 80 02 | 18 03 | 20 04 | 28 05 | 30 06 | 38 07 | 40 08 | 48 09
| 50 0a | 5a 02 08 3c | 60 0c | 68 80 80 80 08
"""
# Members of Operator that are set and have no fields: their tags, before a length of 0.
TAGS = """
0a dml_resample_grad | 12 dml_resample_grad1 | 22 dml_resample2 | 2a interpolate_backward
| 32 interpolate | 3a torch_upsample_backward | 42 torch_interpolate | 4a onnx_resize_grad
| 52 onnx_resize | 5a tf_resize_grad | 62 tf_resize | 6a jax_resize_grad | 72 jax_resize
| 82 01 openvino_interpolate_grad | 8a 01 openvino_interpolate
"""
PARTS = {
    "tensor": "data_type: DATA_TYPE_FLOAT32 sizes: [2, 300] strides: [0, 1]",
    "TENSOR": "08 01 | 12 03 02 ac 02 | 1a 02 00 01",  # 300 is ac 02
    "operator": "dml_resample { interpolation_mode: DML_INTERPOLATION_MODE_LINEAR }",
    "OPERATOR": "1a 02 08 02",  # member 3 of 2 bytes: interpolation_mode 2
    "nulls": r"\000" * 200,
    "NULLS": "00" * 200,
}
ENTRY = re.compile(r"^(\S+)(.*?) :=(.*(?:\n  .*)*)\n=(.*(?:\n\|.*)*)", re.MULTILINE)
TEXT = Template("".join([TABLE, *(table.golden for table in TABLES.values())])).substitute(PARTS)

# The published example: 4, 5, 6 are 40800000, 40a00000, 40c00000.
PUBLISHED = (
    "0a 16 61 20 72 65 71 75 65 73 74 20 6f 66 20 74 68 65 20 74 65 73 74 73"
    "| 12 0e 0a 0c 08 01 12 08 00 00 00 3f 00 00 c0 3f"
    "| 1a 06 08 01 12 02 01 03 | 22 06 08 01 12 02 02 02"
    "| 7a 0c 00 00 80 40 00 00 a0 40 00 00 c0 40"
)
GOLDEN = {
    "EvaluateRequest published": (published_request(), PUBLISHED),
    **{
        message + rest: (text_format.Parse(text, attrgetter(message)(v1)()), hexadecimals)
        for message, rest, text, hexadecimals in ENTRY.findall(TEXT)
    },
    **{
        f"Operator {name}": (v1.Operator(**{name: {}}), f"{tag} 00")
        for tag, _, name in (each.strip().rpartition(" ") for each in TAGS.split("|"))
    },
}


assert len(GOLDEN) == 56


@pytest.mark.parametrize(("message", "text"), GOLDEN.values(), ids=list(GOLDEN))
def test_a_message_has_the_bytes_that_its_schema_gives_it(message, text):
    expected = bytes.fromhex(text.replace("|", ""))
    assert message.SerializeToString(deterministic=True) == expected
    assert type(message).FromString(expected) == message


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
