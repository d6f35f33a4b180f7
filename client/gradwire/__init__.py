"""Gradients of resampling operators, computed by a gradwire server.

Start with Client, or AsyncClient for asyncio; build operators with gradwire.ops.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gradwire._core.retries import RetryPolicy
from gradwire._wire.environment import VERSION
from gradwire.errors import (
    AuthenticationError,
    CallCancelledError,
    DataLossError,
    DeadlineExceededError,
    EvaluationChangedError,
    GradwireError,
    InvalidRequestError,
    LimitExceededError,
    OutOfMemoryError,
    OverloadedError,
    PermissionDeniedError,
    ServerError,
    UnavailableError,
    UnsupportedOperatorError,
    UseStreamError,
)

if TYPE_CHECKING:
    from gradwire import ops, v1
    from gradwire._core.reports import AttributeInfo, OperatorInfo, ServerInfo, ServerLimits, Timing
    from gradwire._transport.aio import AsyncResults
    from gradwire._transport.batch import Results
    from gradwire._wire.requests import Item
    from gradwire.async_client import AsyncClient
    from gradwire.client import Client

__version__ = VERSION

__all__ = [
    "AsyncClient",
    "AsyncResults",
    "AttributeInfo",
    "AuthenticationError",
    "CallCancelledError",
    "Client",
    "DataLossError",
    "DeadlineExceededError",
    "EvaluationChangedError",
    "GradwireError",
    "InvalidRequestError",
    "Item",
    "LimitExceededError",
    "OperatorInfo",
    "OutOfMemoryError",
    "OverloadedError",
    "PermissionDeniedError",
    "Results",
    "RetryPolicy",
    "ServerError",
    "ServerInfo",
    "ServerLimits",
    "Timing",
    "UnavailableError",
    "UnsupportedOperatorError",
    "UseStreamError",
    "__version__",
    "ops",
    "v1",
]

_MODULES = {"health", "ops", "tensors", "v1"}
_HOMES = {
    "_core.reports": {"AttributeInfo", "OperatorInfo", "ServerInfo", "ServerLimits", "Timing"},
    "_wire.requests": {"Item"},
    "client": {"Client", "Results"},
    "async_client": {"AsyncClient", "AsyncResults"},
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used.

    A program of this package configures grpc's logging before grpc is imported.
    """
    if name in _MODULES:
        return import_module(f"gradwire.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value: object = getattr(import_module(f"gradwire.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
