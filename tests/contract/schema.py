"""The schema as its descriptors tell it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from google.protobuf.descriptor import Descriptor

from gradwire import v1

FILES: list[Any] = [
    import_module(f"gradwire.v1.{each.name}")
    for each in pkgutil.iter_modules(v1.__path__)
    if each.name.endswith("_pb2")
]


def _messages(container: Any) -> Iterator[Descriptor]:
    for message in container.values():
        if not message.GetOptions().map_entry:
            yield message
            yield from _messages(message.nested_types_by_name)


MESSAGES = [each for file in FILES for each in _messages(file.DESCRIPTOR.message_types_by_name)]
