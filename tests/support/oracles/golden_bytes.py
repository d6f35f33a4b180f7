"""The bytes of every message, written out by hand from the schema; every release writes the same.

In a tag the number is shifted left by three; the low bits are 0 for a varint and 2 for bytes with
their length before them. So 08 is field 1 as a number, 12 is field 2 with a length, and 7a is field
15, the bulk bytes, with a length. A bar separates fields.
"""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from dialect_tables import TABLES
from gradwire import v1
from support.raw_calls import published_request

TENSOR = v1.TensorDescriptor(
    data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=(2, 300), strides=(0, 1)
)
LINEAR = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_LINEAR
OPERATOR = v1.Operator(dml_resample=v1.DmlResample(interpolation_mode=LINEAR))
# float32 on the wire is little-endian: 0.5 is 3f000000, 1.5 is 3fc00000, -0.5 is bf000000.
DML = v1.DmlResample(
    interpolation_mode=v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR,
    scales=(0.5, 1.5),
    input_pixel_offsets=(0.5,),
    output_pixel_offsets=(-0.5,),
    nearest_rounding=v1.DmlNearestRounding.DML_NEAREST_ROUNDING_HALF_UP,
    offset_convention=v1.DmlOffsetConvention.DML_OFFSET_CONVENTION_SWAPPED,
)
DML2 = v1.DmlResample2(
    interpolation_mode=LINEAR,
    scales=(0.5,),
    input_pixel_offsets=(0.5,),
    output_pixel_offsets=(-0.5,),
    rounding_direction=v1.DmlAxisDirection.DML_AXIS_DIRECTION_DECREASING,
    offset_convention=v1.DmlOffsetConvention.DML_OFFSET_CONVENTION_FORWARD,
)
INTERPOLATE = v1.Interpolate(
    mode=v1.Interpolate.MODE_BILINEAR,
    coordinate_transformation_mode=v1.Interpolate.COORDINATE_TRANSFORMATION_MODE_ALIGN_CORNERS,
    sizes=(112, 2**40),
    scales=(1.5,),
    data_format=v1.Interpolate.DATA_FORMAT_NCX,
    sizes_tensor=(112, 7),
)
VIOLATION = v1.Error.FieldViolation(field="data", description="bad")

OPERATOR_HEX = "1a 02 08 02"  # member 3 of 2 bytes: interpolation_mode 2
TENSOR_HEX = "08 01 | 12 03 02 ac 02 | 1a 02 00 01"  # 300 is ac 02
HEADER_HEX = f"0a 01 61 | 12 04 {OPERATOR_HEX} | 1a 0b {TENSOR_HEX} | 22 0b {TENSOR_HEX} | 2a 00"

GOLDEN: dict[str, tuple[Message, str]] = {
    "TensorDescriptor": (TENSOR, TENSOR_HEX),
    "TensorDescriptor largest size": (
        v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_FLOAT64, sizes=[2**63 - 1]),
        "08 04 | 12 09 ff ff ff ff ff ff ff ff 7f",
    ),
    "TensorDescriptor negative size": (
        v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_BFLOAT16, sizes=[-1]),
        "08 03 | 12 0a ff ff ff ff ff ff ff ff ff 01",
    ),
    "DmlResample": (
        DML,
        (
            "08 01 | 12 08 00 00 00 3f 00 00 c0 3f | 1a 04 00 00 00 3f | 22 04 00 00 00 bf"
            "| 28 02 | 30 02"
        ),
    ),
    "DmlResample2": (
        DML2,
        "08 02 | 12 04 00 00 00 3f | 1a 04 00 00 00 3f | 22 04 00 00 00 bf | 28 02 | 30 01",
    ),
    "Interpolate": (
        INTERPOLATE,
        "08 03 | 10 02 | 1a 07 70 80 80 80 80 80 20 | 22 04 00 00 c0 3f | 28 01 | 32 02 70 07",
    ),
    "Operator dml_resample_grad": (v1.Operator(dml_resample_grad=v1.DmlResample()), "0a 00"),
    "Operator dml_resample_grad1": (v1.Operator(dml_resample_grad1=v1.DmlResample2()), "12 00"),
    "Operator dml_resample": (OPERATOR, OPERATOR_HEX),
    "Operator dml_resample2": (v1.Operator(dml_resample2=v1.DmlResample2()), "22 00"),
    "Operator interpolate_backward": (
        v1.Operator(interpolate_backward=v1.Interpolate()),
        "2a 00",
    ),
    "Operator interpolate": (v1.Operator(interpolate=v1.Interpolate()), "32 00"),
    "Options": (v1.Options(), ""),
    "EvaluateRequest": (
        v1.EvaluateRequest(
            request_id="a",
            operator=OPERATOR,
            input=TENSOR,
            output=TENSOR,
            options=v1.Options(),
            data=b"\x01\x02",
        ),
        f"{HEADER_HEX} | 7a 02 01 02",
    ),
    "EvaluateRequest checked": (
        v1.EvaluateRequest(request_id="a", checksum=0x12345678, data=b"\x01\x02"),
        "0a 01 61 | 75 78 56 34 12 | 7a 02 01 02",
    ),
    # The published example: 4, 5, 6 are 40800000, 40a00000, 40c00000.
    "EvaluateRequest published": (
        published_request(),
        (
            "0a 16 61 20 72 65 71 75 65 73 74 20 6f 66 20 74 68 65 20 74 65 73 74 73"
            "| 12 0e 0a 0c 08 01 12 08 00 00 00 3f 00 00 c0 3f"
            "| 1a 06 08 01 12 02 01 03 | 22 06 08 01 12 02 02 02"
            "| 7a 0c 00 00 80 40 00 00 a0 40 00 00 c0 40"
        ),
    ),
    "EvaluateResponse": (
        v1.EvaluateResponse(request_id="a", output=TENSOR, data=bytes(200)),
        f"0a 01 61 | 12 0b {TENSOR_HEX} | 7a c8 01 {'00' * 200}",
    ),
    "EvaluateResponse checked": (
        v1.EvaluateResponse(request_id="a", checksum=1, data=b"\x01"),
        "0a 01 61 | 75 01 00 00 00 | 7a 01 01",
    ),
    "Chunk": (
        v1.Chunk(offset=300, checksum=0, data=b"\x05"),
        "08 ac 02 | 75 00 00 00 00 | 7a 01 05",
    ),
    "Open": (
        v1.Open(
            request_id="a",
            operator=OPERATOR,
            input=TENSOR,
            output=TENSOR,
            options=v1.Options(),
            resume_from=2**40,
            evaluation_digest="d",
            max_chunk_bytes=1 << 20,
            stop_before=2**41,
            checksum=2**32 - 1,
        ),
        (
            f"{HEADER_HEX} | 30 80 80 80 80 80 20 | 3a 01 64 | 40 80 80 40"
            "| 48 80 80 80 80 80 40 | 75 ff ff ff ff"
        ),
    ),
    "Opened": (
        v1.Opened(
            output=TENSOR,
            read_from_byte=128,
            evaluation_digest="d",
            max_chunk_bytes=1 << 21,
            read_before_byte=256,
            checksum=2,
        ),
        (f"0a 0b {TENSOR_HEX} | 10 80 01 | 1a 01 64 | 20 80 80 80 01 | 28 80 02| 75 02 00 00 00"),
    ),
    "Error": (
        v1.Error(
            code=3,
            reason=v1.ErrorReason.ERROR_REASON_INVALID_DATA,
            message="m",
            metadata={"k": "v"},
            field_violations=[VIOLATION],
            retry_after=Duration(seconds=1, nanos=500_000_000),
        ),
        (
            "08 03 | 10 02 | 1a 01 6d | 22 06 0a 01 6b 12 01 76"
            "| 2a 0b 0a 04 64 61 74 61 12 03 62 61 64 | 32 08 08 01 10 80 ca b5 ee 01"
        ),
    ),
    "Error.FieldViolation": (VIOLATION, "0a 04 64 61 74 61 | 12 03 62 61 64"),
    "EvaluateStreamRequest open": (
        v1.EvaluateStreamRequest(open=v1.Open(operator=OPERATOR)),
        f"0a 06 12 04 {OPERATOR_HEX}",
    ),
    "EvaluateStreamRequest chunk": (
        v1.EvaluateStreamRequest(chunk=v1.Chunk(offset=300, data=b"\x05")),
        "12 06 08 ac 02 7a 01 05",
    ),
    "EvaluateStreamResponse opened": (
        v1.EvaluateStreamResponse(opened=v1.Opened(evaluation_digest="d")),
        "0a 03 1a 01 64",
    ),
    "EvaluateStreamResponse chunk": (
        v1.EvaluateStreamResponse(chunk=v1.Chunk(data=b"\x05")),
        "12 03 7a 01 05",
    ),
    "EvaluateStreamResponse error": (
        v1.EvaluateStreamResponse(error=v1.Error(code=14)),
        "1a 02 08 0e",
    ),
    "EvaluateManyRequest": (
        v1.EvaluateManyRequest(
            evaluation=v1.EvaluateRequest(request_id="a", operator=OPERATOR, data=b"\x01\x02")
        ),
        f"0a 0d 0a 01 61 | 12 04 {OPERATOR_HEX} | 7a 02 01 02",
    ),
    "EvaluateManyResponse result": (
        v1.EvaluateManyResponse(
            request_id="a", result=v1.EvaluateResponse(request_id="a", data=b"\x05")
        ),
        "0a 01 61 | 12 06 0a 01 61 7a 01 05",
    ),
    "EvaluateManyResponse error": (
        v1.EvaluateManyResponse(request_id="a", error=v1.Error(code=14)),
        "0a 01 61 | 1a 02 08 0e",
    ),
    "ListOperatorsRequest": (v1.ListOperatorsRequest(), ""),
    "ListOperatorsResponse": (
        v1.ListOperatorsResponse(operators=[v1.OperatorInfo(name="n")]),
        "0a 03 0a 01 6e",
    ),
    "OperatorInfo": (
        v1.OperatorInfo(
            name="n",
            summary="s",
            source="o",
            gradient=True,
            counterpart="c",
            min_rank=1,
            max_rank=8,
            data_types=(v1.DataType.DATA_TYPE_FLOAT32, v1.DataType.DATA_TYPE_FLOAT16),
            attributes=[v1.AttributeInfo(name="a")],
            output_required=True,
        ),
        (
            "0a 01 6e | 12 01 73 | 1a 01 6f | 20 01 | 2a 01 63 | 30 01 | 38 08 | 42 02 01 02"
            "| 4a 03 0a 01 61 | 50 01"
        ),
    ),
    "AttributeInfo": (
        v1.AttributeInfo(
            name="n",
            type="t",
            required=True,
            default_value="d",
            allowed_values=["a", "b"],
            description="e",
        ),
        "0a 01 6e | 12 01 74 | 18 01 | 22 01 64 | 2a 01 61 | 2a 01 62 | 32 01 65",
    ),
    "GetServerInfoRequest": (v1.GetServerInfoRequest(), ""),
    "SharedRange": (
        v1.SharedRange(handle="h", offset=64, length=4),
        "0a 01 68 | 10 40 | 18 04",
    ),
    "EvaluateSharedRequest": (
        v1.EvaluateSharedRequest(
            evaluation=v1.EvaluateRequest(request_id="r"),
            input=v1.SharedRange(handle="h"),
            output=v1.SharedRange(length=4),
        ),
        "0a 03 0a 01 72 | 12 03 0a 01 68 | 1a 02 18 04",
    ),
    "EvaluateSharedResponse": (
        v1.EvaluateSharedResponse(request_id="r", output=v1.TensorDescriptor(sizes=[2])),
        "0a 01 72 | 12 03 12 01 02",
    ),
    "GetServerInfoResponse": (
        v1.GetServerInfoResponse(
            version="v",
            numerics_version="n",
            backend="b",
            backend_reason="r",
            operators=["x", "y"],
            limits=v1.Limits(max_rank=8),
            shared_memory=True,
            backend_to_come="c",
            checksums=True,
        ),
        (
            "0a 01 76 | 12 01 6e | 1a 01 62 | 22 01 72 | 2a 01 78 | 2a 01 79 | 32 02 08 08"
            " | 38 01 | 42 01 63 | 48 01"
        ),
    ),
    "Limits": (
        v1.Limits(
            max_rank=8,
            max_elements=1 << 36,
            max_table_entries=3,
            max_float32_axis=4,
            max_work=5,
            max_unary_bytes=6,
            max_chunk_bytes=7,
            max_request_memory_bytes=8,
            max_memory_bytes=9,
            max_streams=10,
            stall_timeout=Duration(seconds=60),
            max_in_flight=12,
            max_message_bytes=1 << 24,
        ),
        (
            "08 08 | 10 80 80 80 80 80 02 | 18 03 | 20 04 | 28 05 | 30 06 | 38 07 | 40 08 | 48 09"
            "| 50 0a | 5a 02 08 3c | 60 0c | 68 80 80 80 08"
        ),
    ),
    **{name: entry for table in TABLES.values() for name, entry in table.golden.items()},
}


def of_hex(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", ""))
