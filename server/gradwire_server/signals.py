"""SIGUSR2 before there is a handler for it: it waits, where by default it would end the process.

Nothing is imported here that takes long: what comes before hold() is what a signal can still end.
"""

from __future__ import annotations

import signal


def hold() -> None:
    """Let SIGUSR2 wait. Threads that the caller starts hold it for good."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})


def release() -> None:
    """Let SIGUSR2 come, and what has waited, now that there is a handler."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
