"""Exit codes, and error messages of one line on stderr."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import signal
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, TypeVar

import click
import numpy as np

from gradwire import errors
from gradwire.errors import GradwireError, installing
from gradwire.tensors import Array

T = TypeVar("T")
Facts = dict[str, Any]

OTHER = 1
INVALID = 2
UNKNOWN = 3
UNAVAILABLE = 7
REFUSED = 8
DIFFERENT = 9
INTERRUPTED = 130
TERMINATED = 143

CODES: dict[type[GradwireError], int] = {
    errors.InvalidRequestError: INVALID,
    errors.UnsupportedOperatorError: UNKNOWN,
    errors.LimitExceededError: 4,
    errors.OverloadedError: 5,
    errors.DeadlineExceededError: 6,
    errors.UnavailableError: UNAVAILABLE,
    errors.AuthenticationError: REFUSED,
    errors.PermissionDeniedError: REFUSED,
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
  8    the call needs a token, or the token does not permit the call
  9    compare or check has found a difference
  130  interrupted
  143  ended by SIGTERM
"""


class CommandError(click.ClickException):
    """Failure of a command itself: one line, with an exit code."""

    def __init__(self, message: str, *, code: int = OTHER) -> None:
        super().__init__(message)
        self.code = code


class InvalidUsage(click.ClickException):
    """Invalid arguments."""

    exit_code = INVALID


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the user ends the program, as Ctrl-C does."""


@contextmanager
def terminable() -> Generator[None]:
    """Have SIGTERM raise Terminated within the block.

    Nothing changes if the signal is ignored.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def code_of(error: Exception) -> int | None:
    """Return the exit code of a user-visible error.

    None for a fault of this program.
    """
    if isinstance(error, GradwireError):
        return next((code for kind, code in CODES.items() if isinstance(error, kind)), OTHER)
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, click.ClickException):
        return error.exit_code
    return OTHER if isinstance(error, (OSError, MemoryError)) else None


_FLAGS = {
    "array.shape": "the input's shape",
    "array": "the input",
    "output_shape": "--output-shape",
    "target": "--target",
    "timeout_s": "--timeout",
    "token_file": "--token-file",
    "within timeout_s,": "within",
}
# Shapes are also named within a text, which compares one argument with another.
_NAMES = re.compile(
    r"array\.shape|output_shape|within timeout_s,|^(?:array|target|timeout_s|token_file)(?=:| is )"
)


def report(error: Exception) -> None:
    """Print an error on stderr, in one line.

    Fields and arguments have their names on the command line.
    """
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if isinstance(error, GradwireError):
        text = _NAMES.sub(lambda name: _FLAGS[name[0]], text)
        if "Connection refused" in text:
            # The words of grpc add nothing to the hint before them.
            text = text.partition(": failed to connect")[0]
    if isinstance(error, errors.InvalidRequestError):
        if (error.field or "").startswith("operator.") and ": " in text:
            text = f"--attr {text}"
    elif code_of(error) == REFUSED:
        text = f"{text}; tokens come from --token-file or GRADWIRE_TOKEN"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')}; see {error.ctx.command_path} --help"
    click.echo(f"gradwire: error: {' '.join(text.split())}", file=sys.stderr)


# Most numbers of a list that are written, half of them from each end.
SHOWN = 6


def number(value: Any) -> str:
    """Return a number with the fewest digits that identify it.

    It is "-" for None. The digits are those of its type. A float64 that float32 can hold is written
    as float32: tables in float32 arithmetic arrive widened.
    """
    if value is None:
        return "-"
    wide = np.float64(value)
    with np.errstate(over="ignore"):
        narrow = np.float32(wide)
    return str(narrow if narrow == wide else wide).removesuffix(".0")


def numbers(values: Array) -> str:
    """Write numbers; the middle of a long list is left out."""
    return " ".join(shortened(list(map(number, values)), SHOWN, " ..."))


def places(indices: Array) -> str:
    """Write ascending indices, neighbors as a range: "0 2-4".

    The middle of a long list is left out.
    """
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1) if len(indices) else ()
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return " ".join(shortened(words, SHOWN, " ...")) or "none"


def shortened(items: Sequence[T], most: int, hint: str = "") -> list[T | str]:
    """Return the items; a text stands for the middle of too many.

    most  items from both ends that are left
    hint  end of the text
    """
    more, first = len(items) - most, (most + 1) // 2
    if more <= 0:
        return list(items)
    return [*items[:first], f"... {more} more{hint}", *items[first + more :]]


def tell(facts: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the facts as JSON, or else the lines."""
    click.echo(json.dumps(facts, allow_nan=False) if as_json else "\n".join(lines))


def table(titles: Sequence[str], rows: Iterable[Sequence[str] | str]) -> list[str]:
    """Align columns to the right, but the last one.

    A string is a row by itself.
    """
    lines = [titles, *rows]
    cells = [row for row in lines if not isinstance(row, str)]
    *widths, _ = (max(map(len, column)) for column in zip(*cells, strict=True))

    def line(row: Sequence[str]) -> str:
        return "".join(f"  {cell:>{width}}" for cell, width in zip(row, [*widths, 0], strict=True))

    return [f"  {row}" if isinstance(row, str) else line(row) for row in lines]


_NONFINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_number(value: Any) -> float | str | None:
    """Return a number for JSON, or None.

    Non-finite numbers are those of protobuf.
    """
    if value is None:
        return None
    wide = float(value)
    return _NONFINITE.get(str(wide)) or wide


def load(module: str, fix: str = installing("plot")) -> ModuleType:
    """Import a module; raise CommandError if a package is missing.

    fix  how to install it
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: {fix}") from None


def show_status(text: str) -> None:
    """Replace the line on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        # The line is erased to its end, and later output starts at its left.
        line = text[: shutil.get_terminal_size().columns - 1]
        click.echo(f"\r{line}\x1b[K\r", err=True, nl=False)
