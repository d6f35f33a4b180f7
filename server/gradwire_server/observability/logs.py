"""Log lines: an event and its facts, as key=value text or as JSON.

The lines of calls that went as usual are written together, some at a time or a moment later: one by
one they would cost a small call a tenth of its time. All others are written at once, those that
wait before them, and so are the last ones when the process ends; if it is killed, the lines of the
calls of the last 0.1 s are lost.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TextIO

Facts = Mapping[str, object]

_log = logging.getLogger("gradwire_server")


# Lines that are written together, and how long the first of them waits at most.
_TOGETHER = 32
_MOMENT_S = 0.1
_REFUSALS_S = 1.0


class Refusals:
    """Tells of what was refused for want of room, or of leave, at most once a second.

    A line for each would take a full server longer than the refusal itself. Threads may use it.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next = -math.inf
        self._lock = threading.Lock()

    def note(self, why: str, **facts: str) -> None:
        """Count a refusal; why names the setting in the way. The facts are those of the latest."""
        with self._lock:
            self._counts[why] += 1
            now = time.monotonic()
            if now < self._next:
                return
            counts = dict(self._counts)
            self._counts.clear()
            self._next = now + _REFUSALS_S
        _log.warning("refused", extra={"facts": {**counts, **facts}})


def tell(level: int, event: str, facts: Facts) -> None:
    """Log an event of which there are many; facts are the log's from now on.

    Where `configure` has said how lines are written and nobody filters them, in an event loop that
    is put off for a moment. Nor is there a record, whose way through loggers takes longer than the
    rest.
    """
    if not _log.isEnabledFor(level):
        return
    if _Lines.configured is None or _log.filters:
        _log.log(level, event, extra={"facts": facts})
    else:
        _Lines.configured.put_off(time.time(), level, event, facts)


def write_waiting() -> None:
    """Write the lines that wait: for processes that end without the usual exit."""
    if _Lines.configured is not None:
        _Lines.configured.write_waiting()


def configure(log_format: str, log_level: str, **always: object) -> None:
    """Send the server's log lines to stderr; each tells also the facts given here."""
    lines = _Lines(_json if log_format == "json" else _text, sys.stderr, always)
    # What exports traces has warnings of its own.
    for name, level in ((_log.name, log_level.upper()), ("opentelemetry", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [lines]
        logger.setLevel(level)
        logger.propagate = False
    if _Lines.configured is not None:
        atexit.unregister(_Lines.configured.write_waiting)
    _Lines.configured = lines
    atexit.register(lines.write_waiting)


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
        self._waiting: deque[tuple[float, int, str, Facts, str]] = deque()
        # Whether an event loop is going to write them.
        self._due = False
        # Since lines could last be written.
        self._lost = 0
        self._writing = threading.RLock()
        # Of the latest line.
        self._second, self._text_of_second = -1, ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, after those that wait."""
        facts: Facts = getattr(record, "facts", {})
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        self._waiting.append(
            (record.created, record.levelno, record.getMessage(), facts, traceback)
        )
        self.write_waiting()

    def put_off(self, at: float, level: int, event: str, facts: Facts) -> None:
        """Write a line within a moment; at is in seconds since 1970."""
        self._waiting.append((at, level, event, facts, ""))
        if len(self._waiting) >= _TOGETHER:
            self.write_waiting()
        elif not self._due:
            try:
                asyncio.get_running_loop().call_later(_MOMENT_S, self.write_waiting)
            except RuntimeError:
                self.write_waiting()  # there is no loop
            else:
                self._due = True

    def write_waiting(self) -> None:
        """Write the lines that wait."""
        with self._writing:
            self._due = False
            lines: list[str] = []
            while self._waiting:
                at, level, event, facts, traceback = self._waiting.popleft()
                if self._always:
                    facts = {**self._always, **facts}
                name = logging.getLevelName(level).lower()
                lines.append(self._form(self._time(at), name, event, facts, traceback))
            self._write(lines)

    def _write(self, lines: list[str]) -> None:
        """Write lines, or count the lost: no call ends for a full disk, or a reader who is gone."""
        if self._lost:
            facts = {**self._always, "lines": self._lost}
            lines.append(self._form(self._time(time.time()), "warning", "lines lost", facts, ""))
        try:
            self._stream.write("".join(lines))
            self._stream.flush()
        except OSError:
            self._lost += len(lines) - bool(self._lost)
        else:
            self._lost = 0

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
