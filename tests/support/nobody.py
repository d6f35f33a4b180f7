"""The context of a call that nobody made, for what is asked of calls without a server."""

from __future__ import annotations


class Nobody:
    """A caller without a certificate or a deadline."""

    def peer(self) -> str:
        return "nobody:1"

    def peer_identities(self) -> None:
        return

    def time_remaining(self) -> None:
        return
