"""What a client is constructed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import grpc

from gradwire._targets import is_list
from gradwire._tokens import Bearer, read_bearer
from gradwire.errors import InvalidRequestError
from gradwire.retries import RetryBudget, RetryPolicy, Tries

CONNECTIONS = 2
TIMEOUT_S = 60.0
STREAM_THRESHOLD_BYTES = 256 << 10
CHUNK_BYTES = 1 << 20
SPLIT_THRESHOLD_BYTES = 4 << 20
RETRY = RetryPolicy()

# A year. Clocks of grpc overflow some way beyond, and such calls end at once.
MAX_TIMEOUT_S = 365 * 24 * 3600

# A server refuses less: each chunk of a result costs it a message.
LEAST_CHUNK_BYTES = 4096
# Below the longest message a channel takes.
_MAX_CHUNK_BYTES = 32 << 20
# Far beyond what helps: each is a socket at both ends.
_MAX_CONNECTIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of Client and AsyncClient, checked; see Client for what they mean."""

    target: Sequence[str]
    credentials: grpc.ChannelCredentials | None
    connections: int
    timeout_s: float
    stream_threshold_bytes: int
    chunk_bytes: int
    retry: RetryPolicy
    split: bool = False
    split_threshold_bytes: int = SPLIT_THRESHOLD_BYTES
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    connect_timeout_s: float | None = None
    bearer: Bearer | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_credentials(self.credentials)
        if not _is_count(self.connections) or not 1 <= self.connections <= _MAX_CONNECTIONS:
            raise ValueError(
                f"connections is {self.connections!r}; give 1 to {_MAX_CONNECTIONS} for each server"
            )
        if not is_timeout(self.timeout_s):
            raise ValueError(
                f"timeout_s is {self.timeout_s!r}; give seconds above 0, at most {MAX_TIMEOUT_S}"
            )
        if self.connect_timeout_s is not None and not is_timeout(self.connect_timeout_s):
            raise ValueError(
                f"connect_timeout_s is {self.connect_timeout_s!r}; give seconds above 0, at most "
                f"{MAX_TIMEOUT_S}, or None"
            )
        chunk = self.chunk_bytes
        for name in ("stream_threshold_bytes", "split_threshold_bytes"):
            threshold = getattr(self, name)
            if not _is_count(threshold):
                raise ValueError(f"{name} is {threshold!r}; give 0 or more bytes")
        if not _is_count(chunk) or not LEAST_CHUNK_BYTES <= chunk <= _MAX_CHUNK_BYTES:
            raise ValueError(
                f"chunk_bytes is {chunk!r}; give {LEAST_CHUNK_BYTES} to {_MAX_CHUNK_BYTES} bytes"
            )
        secure = self.credentials is not None
        bearer = read_bearer(self.token, self.token_file, target=self.target, secure=secure)
        object.__setattr__(self, "bearer", bearer)

    def tries(self, budget: RetryBudget) -> Tries:
        """Return the tries of a call, which share the budget of a client."""
        return Tries(
            self.retry,
            budget,
            one_server=self.one_server,
            connect_timeout_s=self.connect_timeout_s,
        )

    @property
    def one_server(self) -> bool:
        """Whether each call goes to the same server, as far as is known."""
        return len(self.target) == 1 and not is_list(self.target[0])

    def as_arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, for a copy of the client in another process."""
        if self.credentials is not None:
            raise TypeError(
                "a client with credentials cannot be pickled, since grpc's credentials cannot; "
                "make the client where it is used"
            )
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}


def check_credentials(value: object) -> None:
    """Raise InvalidRequestError where a value is neither credentials of a channel nor None."""
    if value is not None and not isinstance(value, grpc.ChannelCredentials):
        # What came may be a secret.
        raise InvalidRequestError.of(
            "credentials",
            f"is of type {type(value).__name__}; give what grpc.ssl_channel_credentials() returns, "
            "or None for plain text",
        )


def is_timeout(value: object) -> bool:
    """Whether a value is a number of seconds that a call can take."""
    return isinstance(value, int | float) and 0 < value <= MAX_TIMEOUT_S


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0
