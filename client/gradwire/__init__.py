"""Gradients of resampling operators, computed by a gradwire server.

Start with Client, or AsyncClient for asyncio; build operators with gradwire.ops.
"""

from __future__ import annotations

from gradwire import ops, v1
from gradwire._many_async import AsyncResults
from gradwire._many_items import Item
from gradwire._many_results import Results
from gradwire._version import VERSION
from gradwire.async_client import AsyncClient
from gradwire.client import Client
from gradwire.errors import (
    AuthenticationError,
    CallCancelledError,
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
from gradwire.retries import RetryPolicy
from gradwire.timing import Timing

__version__ = VERSION

__all__ = [
    "AsyncClient",
    "AsyncResults",
    "AuthenticationError",
    "CallCancelledError",
    "Client",
    "DeadlineExceededError",
    "EvaluationChangedError",
    "GradwireError",
    "InvalidRequestError",
    "Item",
    "LimitExceededError",
    "OutOfMemoryError",
    "OverloadedError",
    "PermissionDeniedError",
    "Results",
    "RetryPolicy",
    "ServerError",
    "Timing",
    "UnavailableError",
    "UnsupportedOperatorError",
    "UseStreamError",
    "__version__",
    "ops",
    "v1",
]
