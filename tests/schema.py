"""The schema as its descriptors tell it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor

from gradwire.v1 import error_reason_pb2, gradient_service_pb2, operator_pb2, tensor_pb2

FILES: tuple[Any, ...] = (error_reason_pb2, gradient_service_pb2, operator_pb2, tensor_pb2)


def _messages(container: Any) -> Iterator[Descriptor]:
    for message in container.values():
        if not message.GetOptions().map_entry:
            yield message
            yield from _messages(message.nested_types_by_name)


MESSAGES = [each for file in FILES for each in _messages(file.DESCRIPTOR.message_types_by_name)]
