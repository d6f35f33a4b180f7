"""Signals before there are handlers for them: they wait.

SIGUSR2 would end the process by default. SIGTERM does so rightly, but not in the first process of a
container, for which Linux drops signals that have no handler (pid_namespaces(7)): who stops the
container in that moment would wait until it is killed.

Nothing is imported here that takes long: what comes before hold() is what a signal can still end.
"""

from __future__ import annotations

import os
import signal

_HELD = {signal.SIGUSR2, signal.SIGTERM} if os.getpid() == 1 else {signal.SIGUSR2}


def hold() -> None:
    """Let signals wait. Threads that the caller starts hold them for good."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Let them come, and what has waited, now that there are handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
