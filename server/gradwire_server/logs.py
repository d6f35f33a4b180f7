"""Log lines: an event and its facts, as key=value text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TextIO

Facts = Mapping[str, object]

_log = logging.getLogger("gradwire_server")


def tell(level: int, event: str, facts: Facts) -> None:
    """Log an event of which there are many.

    Where `configure` has said how lines are written, one is written right away: a record and its
    way through loggers and handlers take longer than a small call.
    """
    if not _log.isEnabledFor(level):
        return
    if _Lines.configured is None:
        _log.log(level, event, extra={"facts": facts})
    else:
        _Lines.configured.write(time.time(), logging.getLevelName(level), event, facts)


def configure(log_format: str, log_level: str, **always: object) -> None:
    """Send the server's log lines to stderr; each tells also the facts given here."""
    lines = _Lines(_json if log_format == "json" else _text, sys.stderr, always)
    # What exports traces has warnings of its own.
    for name, level in ((_log.name, log_level.upper()), ("opentelemetry", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [lines]
        logger.setLevel(level)
        logger.propagate = False
    _Lines.configured = lines


# Of the time as text, level, event, facts, and a traceback or nothing.
_Format = Callable[[str, str, str, Facts, str], str]


class _Lines(logging.Handler):
    """Writes lines to a stream.

    always  facts that every line tells
    """

    configured: _Lines | None = None

    def __init__(self, form: _Format, stream: TextIO, always: Facts) -> None:
        super().__init__()
        self._form = form
        self._stream = stream
        self._always = always
        self._writing = threading.Lock()
        # Of the latest line.
        self._second, self._text_of_second = -1, ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record."""
        facts: Facts = getattr(record, "facts", {})
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        self.write(record.created, record.levelname, record.getMessage(), facts, traceback)

    def write(self, at: float, level: str, event: str, facts: Facts, traceback: str = "") -> None:
        """Write a line; at is in seconds since 1970."""
        if self._always:
            facts = {**self._always, **facts}
        with self._writing:
            line = self._form(self._time(at), level.lower(), event, facts, traceback)
            self._stream.write(line)
            self._stream.flush()

    def _time(self, at: float) -> str:
        second = int(at)
        if second != self._second:
            text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second, self._text_of_second = second, text
        return f"{self._text_of_second}.{int(1e3 * (at - second)):03d}+00:00"


def _text(at: str, level: str, event: str, facts: Facts, traceback: str) -> str:
    words = [f" {name}={_word(value)}" for name, value in facts.items()]
    return f"{at} {level:7} {event}{''.join(words)}\n{traceback and traceback + chr(10)}"


def _json(at: str, level: str, event: str, facts: Facts, traceback: str) -> str:
    told = {"time": at, "level": level, "event": event, **facts}
    if traceback:
        told["traceback"] = traceback
    return json.dumps(told, default=str) + "\n"


def _word(value: object) -> str:
    text = str(value)
    if text.isprintable() and " " not in text and '"' not in text and "=" not in text and text:
        return text
    return json.dumps(text)
