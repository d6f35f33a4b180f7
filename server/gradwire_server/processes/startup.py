"""Signals and standard streams, prepared before long imports.

SIGUSR2 would end the process by default. So would SIGTERM, but not in the first process of a
container, for which Linux drops signals without a handler (pid_namespaces(7)): a container would
then run until it is killed. Both stay blocked until handlers exist. A signal can end the process
only before hold(), so this module imports nothing slow.
"""

from __future__ import annotations

import os
import signal

_HELD = {signal.SIGUSR2, signal.SIGTERM} if os.getpid() == 1 else {signal.SIGUSR2}


def hold() -> None:
    """Block the signals. Threads started by the caller keep them blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Unblock the signals, pending ones included, once handlers exist."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def open_closed() -> None:
    """Open the null device where a standard stream is closed.

    libuv ends a process whose event loop gets one of their numbers.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def tell(text: str) -> None:
    """Print a line on stdout, where it can be written."""
    try:
        print(text, flush=True)  # noqa: T201
    except OSError as error:
        import logging  # noqa: PLC0415 - slow

        logging.getLogger("gradwire_server").warning("stdout cannot be written: %s", error)
        # Otherwise the interpreter fails to flush it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
