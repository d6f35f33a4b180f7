"""What a client is constructed with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import grpc

from gradwire.retries import RetryPolicy

TIMEOUT_S = 60.0
STREAM_THRESHOLD_BYTES = 256 << 10
CHUNK_BYTES = 1 << 20
RETRY = RetryPolicy()

# Below the longest message a channel takes.
_MAX_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of Client and AsyncClient, checked; see Client for what they mean."""

    target: str
    credentials: grpc.ChannelCredentials | None
    timeout_s: float
    stream_threshold_bytes: int
    chunk_bytes: int
    retry: RetryPolicy

    def __post_init__(self) -> None:
        if not self.target:
            raise ValueError('target is empty; give a server\'s address, such as "127.0.0.1:50051"')
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s is {self.timeout_s}; give seconds above 0")
        if self.stream_threshold_bytes < 0:
            raise ValueError(
                f"stream_threshold_bytes is {self.stream_threshold_bytes}; give 0 or more bytes"
            )
        if not 1 <= self.chunk_bytes <= _MAX_CHUNK_BYTES:
            raise ValueError(
                f"chunk_bytes is {self.chunk_bytes}; give 1 to {_MAX_CHUNK_BYTES} bytes"
            )

    def as_arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, for a copy of the client in another process."""
        if self.credentials is not None:
            raise TypeError(
                "a client with credentials cannot be pickled, since grpc's credentials cannot; "
                "make the client where it is used"
            )
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
