"""Messages of the package inference, in a DescriptorPool of their own.

Clients define the same package in the default pool, which takes each name once per process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

NAME = "inference.GRPCInferenceService"

_POOL = descriptor_pool.DescriptorPool()
_ENCODED = (Path(__file__).parent / "descriptors.binpb").read_bytes()
for _file in FileDescriptorSet.FromString(_ENCODED).file:
    _POOL.Add(_file)
SERVICE = _POOL.FindServiceByName(NAME)


def message(name: str) -> Any:
    """Return the class of a message of the package."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{name}"))


class BothPools:
    """The default pool and then this one, for reflection."""

    def __getattr__(self, name: str) -> Any:
        def find(*arguments: Any) -> Any:
            try:
                return getattr(descriptor_pool.Default(), name)(*arguments)
            except KeyError:
                return getattr(_POOL, name)(*arguments)

        return find
