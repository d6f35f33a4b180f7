"""The numbers and names of the schema, which no release may change."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from contract.schema import FILES, MESSAGES
from dialect_tables import TABLES
from gradwire.v1 import gradient_service_pb2


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.name)
def test_bulk_bytes_are_field_15_and_last(message: Descriptor) -> None:
    bulk = [field.number for field in message.fields if field.type == FieldDescriptor.TYPE_BYTES]
    assert bulk in ([], [15])
    others = [field.number for field in message.fields if field.number not in bulk]
    assert 15 not in others
    assert not bulk or max(others) < 15


ENUMS = {
    "DataType": ["UNSPECIFIED", "FLOAT32", "FLOAT16", "BFLOAT16", "FLOAT64"],
    "DmlInterpolationMode": ["UNSPECIFIED", "NEAREST_NEIGHBOR", "LINEAR"],
    "DmlAxisDirection": ["UNSPECIFIED", "INCREASING", "DECREASING"],
    "DmlNearestRounding": ["UNSPECIFIED", "HALF_DOWN", "HALF_UP"],
    "DmlOffsetConvention": ["UNSPECIFIED", "FORWARD", "SWAPPED"],
    "Interpolate.Mode": ["UNSPECIFIED", "NEAREST", "LINEAR", "BILINEAR", "TRILINEAR"],
    "Interpolate.CoordinateTransformationMode": ["UNSPECIFIED", "HALF_PIXEL", "ALIGN_CORNERS"],
    "Interpolate.DataFormat": ["UNSPECIFIED", "NCX", "NXC"],
    "ErrorReason": [
        "UNSPECIFIED",
        "INVALID_FIELD",
        "INVALID_DATA",
        "UNKNOWN_FIELD",
        "UNKNOWN_OPERATOR",
        "USE_STREAM",
        "LIMIT_EXCEEDED",
        "TABLE_TOO_LARGE",
        "LAYOUT_NOT_STREAMABLE",
        "OVERLOADED",
        "OUT_OF_MEMORY",
        "DEADLINE_EXCEEDED",
        "STALLED",
        "DRAINING",
        "EVALUATION_CHANGED",
        "INTERNAL",
        "STARTING",
        "DEVICE_LOST",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "UNKNOWN_SEGMENT",
        "CHECKSUM_MISMATCH",
    ],
    **{name: values for table in TABLES.values() for name, values in table.enums.items()},
}


def test_every_enum_has_its_numbers_in_this_order() -> None:
    enums = [each for file in FILES for each in file.DESCRIPTOR.enum_types_by_name.values()]
    enums += [each for message in MESSAGES for each in message.enum_types]
    seen = {
        enum.full_name.removeprefix("gradwire.v1."): [
            value.name.removeprefix(enum.values[0].name.removesuffix("UNSPECIFIED"))
            for value in sorted(enum.values, key=lambda value: value.number)
        ]
        for enum in enums
    }
    assert seen == ENUMS
    assert all(value.number == i for enum in enums for i, value in enumerate(enum.values))


def test_the_methods_have_their_paths_types_and_directions() -> None:
    service = gradient_service_pb2.DESCRIPTOR.services_by_name["GradientService"]
    assert service.full_name == "gradwire.v1.GradientService"
    assert [
        (
            each.name,
            each.input_type.name,
            each.client_streaming,
            each.output_type.name,
            each.server_streaming,
        )
        for each in service.methods
    ] == [
        ("Evaluate", "EvaluateRequest", False, "EvaluateResponse", False),
        ("EvaluateStream", "EvaluateStreamRequest", True, "EvaluateStreamResponse", True),
        ("EvaluateMany", "EvaluateManyRequest", True, "EvaluateManyResponse", True),
        ("EvaluateShared", "EvaluateSharedRequest", False, "EvaluateSharedResponse", False),
        ("ListOperators", "ListOperatorsRequest", False, "ListOperatorsResponse", False),
        ("GetServerInfo", "GetServerInfoRequest", False, "GetServerInfoResponse", False),
    ]
