"""A call that nobody made, for what is asked of calls without a server."""

from __future__ import annotations

from typing import Any

from gradwire_server.observability.recording import Observer
from gradwire_server.rpc.call_context import ActiveCall, ActiveCalls


class _Nobody:
    """A caller without a certificate or a deadline."""

    def peer(self) -> str:
        return "nobody:1"

    def peer_identities(self) -> None:
        return

    def time_remaining(self) -> None:
        return


def a_call() -> ActiveCall:
    """Begin a call."""
    context: Any = _Nobody()
    return ActiveCall("Evaluate", context, ActiveCalls(Observer()))
