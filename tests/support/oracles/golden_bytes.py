"""The bytes of every message, written out by hand from the schema; every release writes the same.

In a tag the number is shifted left by three; the low bits are 0 for a varint and 2 for bytes with
their length before them. So 08 is field 1 as a number, 12 is field 2 with a length, and 7a is field
15, the bulk bytes, with a length. A bar separates fields.
"""

from __future__ import annotations

import re
from operator import attrgetter
from string import Template
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from gradwire import v1
from support.oracles.dialect_tables import TABLES
from support.raw_calls import published_request

# A name that begins with the message's, the message as text, and its bytes.
# float32 on the wire is little-endian: 0.5 is 3f000000, 1.5 is 3fc00000, -0.5 is bf000000.
_TABLE = r"""
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
_MEMBERS = """
0a dml_resample_grad | 12 dml_resample_grad1 | 22 dml_resample2 | 2a interpolate_backward
| 32 interpolate | 3a torch_upsample_backward | 42 torch_interpolate | 4a onnx_resize_grad
| 52 onnx_resize | 5a tf_resize_grad | 62 tf_resize | 6a jax_resize_grad | 72 jax_resize
| 82 01 openvino_interpolate_grad | 8a 01 openvino_interpolate
"""
_PARTS = {
    "tensor": "data_type: DATA_TYPE_FLOAT32 sizes: [2, 300] strides: [0, 1]",
    "TENSOR": "08 01 | 12 03 02 ac 02 | 1a 02 00 01",  # 300 is ac 02
    "operator": "dml_resample { interpolation_mode: DML_INTERPOLATION_MODE_LINEAR }",
    "OPERATOR": "1a 02 08 02",  # member 3 of 2 bytes: interpolation_mode 2
    "nulls": r"\000" * 200,
    "NULLS": "00" * 200,
}
_ENTRY = re.compile(r"^(\S+)(.*?) :=(.*(?:\n  .*)*)\n=(.*(?:\n\|.*)*)", re.MULTILINE)
_TEXT = Template("".join([_TABLE, *(table.golden for table in TABLES.values())])).substitute(_PARTS)

# The published example: 4, 5, 6 are 40800000, 40a00000, 40c00000.
_PUBLISHED = (
    "0a 16 61 20 72 65 71 75 65 73 74 20 6f 66 20 74 68 65 20 74 65 73 74 73"
    "| 12 0e 0a 0c 08 01 12 08 00 00 00 3f 00 00 c0 3f"
    "| 1a 06 08 01 12 02 01 03 | 22 06 08 01 12 02 02 02"
    "| 7a 0c 00 00 80 40 00 00 a0 40 00 00 c0 40"
)
GOLDEN: dict[str, tuple[Message, str]] = {
    "EvaluateRequest published": (published_request(), _PUBLISHED),
    **{
        message + rest: (text_format.Parse(text, attrgetter(message)(v1)()), hexadecimals)
        for message, rest, text, hexadecimals in _ENTRY.findall(_TEXT)
    },
    **{
        f"Operator {name}": (v1.Operator(**dict[str, Any]({name: {}})), f"{tag} 00")
        for tag, _, name in (each.strip().rpartition(" ") for each in _MEMBERS.split("|"))
    },
}


def of_hex(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", ""))
