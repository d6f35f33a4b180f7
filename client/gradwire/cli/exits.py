"""Exit codes, and error messages of one line on stderr."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import click

from gradwire.errors import (
    AuthenticationError,
    DeadlineExceededError,
    GradwireError,
    InvalidRequestError,
    LimitExceededError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedOperatorError,
)

OTHER = 1
INVALID = 2
UNKNOWN = 3
DIFFERENT = 9
INTERRUPTED = 130
TERMINATED = 143

CODES: dict[type[GradwireError], int] = {
    InvalidRequestError: INVALID,
    UnsupportedOperatorError: UNKNOWN,
    LimitExceededError: 4,
    OverloadedError: 5,
    DeadlineExceededError: 6,
    UnavailableError: 7,
    AuthenticationError: 8,
    PermissionDeniedError: 8,
}

HELP = """\b
Exit codes:
  0    done
  1    any other failure
  2    wrong usage, or an invalid request
  3    the operator is not known, or the server does not know an attribute
  4    a limit of the server is exceeded; a retry does not help
  5    the server is overloaded; a retry does help
  6    the deadline has passed
  7    no server answers, or it is shutting down
  8    the server takes no call without a token, or the token does not open this
  9    compare or check has found a difference
  130  interrupted
  143  ended by SIGTERM
"""


class CommandError(click.ClickException):
    """Failure of a command itself: one line, with an exit code."""

    def __init__(self, message: str, *, code: int = OTHER) -> None:
        super().__init__(message)
        self.code = code


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the user ends the program, as Ctrl-C does."""


@contextmanager
def terminable() -> Generator[None]:
    """Have SIGTERM raise Terminated within the block; not where it is ignored, or a thread asks."""
    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def code_of_interruption(error: BaseException) -> int:
    """Return the exit code of a program that the user has ended; click wraps what ended it."""
    ended = error.__cause__ if isinstance(error, click.Abort) else error
    return TERMINATED if isinstance(ended, Terminated) else INTERRUPTED


def code_of(error: Exception) -> int | None:
    """Return the exit code of an error that a user can meet; None for a fault of this program."""
    if isinstance(error, GradwireError):
        return next((code for kind, code in CODES.items() if isinstance(error, kind)), OTHER)
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, click.ClickException):
        return error.exit_code
    return OTHER if isinstance(error, (OSError, MemoryError)) else None


_FLAGS = {
    "array": "the input",
    "array.shape": "the input's shape",
    "output_shape": "--output-shape",
    "timeout_s": "--timeout",
    "token_file": "--token-file",
}


def _in_flags(error: InvalidRequestError) -> str:
    """Name flags in a message: --attr for an attribute, others for arguments."""
    field = error.field or ""
    name, separator, rest = str(error).partition(": ")
    if field.startswith("operator.") and separator:
        name = f"--attr {name}"
    named, bracket, index = name.partition("[")
    return f"{_FLAGS.get(named, named)}{bracket}{index}{separator}{rest}"


def report(error: Exception) -> None:
    """Print an error in one line on stderr, in the names of the command line."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if isinstance(error, InvalidRequestError):
        text = _in_flags(error)
    elif isinstance(error, (AuthenticationError, PermissionDeniedError)):
        text = f"{text}; tokens come from --token-file or GRADWIRE_TOKEN"
    if isinstance(error, GradwireError):
        text = text.replace(" (output_shape in the SDK)", "").replace("within timeout_s,", "within")
        # Among the words too, which compare one argument with another.
        for argument in ("array.shape", "output_shape"):
            text = text.replace(argument, _FLAGS[argument])
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')}; see {error.ctx.command_path} --help"
    click.echo(f"gradwire: error: {' '.join(text.split())}", file=sys.stderr)
