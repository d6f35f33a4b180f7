"""A call that nobody made, for what is asked of calls without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gradwire_server.observability.recording import Observer
from gradwire_server.rpc.call_context import ActiveCall, ActiveCalls


def a_call() -> ActiveCall:
    """Begin a call of someone without a certificate or a deadline."""
    context: Any = SimpleNamespace(
        peer=lambda: "nobody:1", peer_identities=lambda: None, time_remaining=lambda: None
    )
    return ActiveCall("Evaluate", context, ActiveCalls(Observer()))
