"""CRC32C checksums of messages.

A checksum covers all bytes of its message but those of its own field; `framing` writes and reads
them. The checksums of TCP and Ethernet miss some of the changes that faulty memory in routers and
network cards makes; TLS finds all of them.

google-crc32c computes them, if its compiled code is there; its Python code would take longer than
the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from gradwire import v1

Buffer = bytes | bytearray | memoryview

FIELD = v1.EvaluateRequest.CHECKSUM_FIELD_NUMBER


def _compiled() -> Callable[[int, Any], int] | None:
    try:
        library: Any = import_module("google_crc32c")
    except ImportError:
        return None
    extend: Callable[[int, Any], int] = library.extend
    return extend if library.implementation == "c" else None


_EXTEND = _compiled()
AVAILABLE = _EXTEND is not None


def crc32c(data: Buffer, after: int = 0) -> int:
    """Return the CRC32C of bytes that follow those with the CRC32C `after`."""
    assert _EXTEND is not None  # noqa: S101 - callers look at AVAILABLE
    # It takes no memoryview, but arrays, without a copy.
    return _EXTEND(after, data if type(data) is bytes else np.frombuffer(data, np.uint8))


def seal(message: v1.Open | v1.Opened, *, after: int = 0) -> int:
    """Set the checksum of a message without data; return it."""
    message.ClearField("checksum")
    message.checksum = crc32c(message.SerializeToString(), after)
    return message.checksum
