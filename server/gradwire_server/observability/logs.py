"""Log lines: an event and its facts, as key=value text or as JSON.

Lines of successful calls are buffered and written in batches, after at most 0.1 s: written one by
one they would cost a small call a tenth of its time. All other lines flush the buffer and are
written immediately, and the buffer is flushed when the process exits; if it is killed, the lines of
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


# Lines in a batch, and the longest delay of its first line.
_TOGETHER = 32
_MOMENT_S = 0.1
_REFUSALS_S = 1.0


class Refusals:
    """Logs refusals for lack of capacity or permission, at most once a second.

    A line for each would cost an overloaded server more than the refusal itself. Thread-safe.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next = -math.inf
        self._lock = threading.Lock()

    def note(self, why: str, **facts: str) -> None:
        """Count a refusal; `why` names the limiting setting; the latest facts are logged."""
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
    """Log a frequent event; the caller must not modify `facts` afterwards.

    After `configure`, and unless the logger has filters, the line is buffered in an event loop, and
    no LogRecord is made, since passing one through loggers takes longer than the rest.
    """
    if not _log.isEnabledFor(level):
        return
    if _Lines.configured is None or _log.filters:
        _log.log(level, event, extra={"facts": facts})
    else:
        _Lines.configured.put_off(time.time(), level, event, facts)


def write_waiting() -> None:
    """Write buffered lines, in processes that end without the usual exit."""
    if _Lines.configured is not None:
        _Lines.configured.write_waiting()


def configure(log_format: str, log_level: str, **always: object) -> None:
    """Send the server's log lines to stderr; `always` is added to each."""
    lines = _Lines(_json if log_format == "json" else _text, sys.stderr, always)
    # The trace exporter logs warnings of its own.
    for name, level in ((_log.name, log_level.upper()), ("opentelemetry", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [lines]
        logger.setLevel(level)
        logger.propagate = False
    if _Lines.configured is not None:
        atexit.unregister(_Lines.configured.write_waiting)
    _Lines.configured = lines
    atexit.register(lines.write_waiting)


# Arguments: time as text, level, event, facts, and a traceback or nothing.
_Format = Callable[[str, str, str, Facts, str], str]


class _Lines(logging.Handler):
    """Writes lines to a stream.

    always  facts added to every line
    """

    configured: _Lines | None = None

    def __init__(self, form: _Format, stream: TextIO, always: Facts) -> None:
        super().__init__()
        self._form = form
        self._stream = stream
        self._always = always
        self._waiting: deque[tuple[float, int, str, Facts, str]] = deque()
        # Whether an event loop has a write scheduled.
        self._due = False
        # Lines lost since the last successful write.
        self._lost = 0
        self._writing = threading.RLock()
        # Second of the latest line, and its text.
        self._second, self._text_of_second = -1, ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, after the buffered lines."""
        facts: Facts = getattr(record, "facts", {})
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        self._waiting.append(
            (record.created, record.levelno, record.getMessage(), facts, traceback)
        )
        self.write_waiting()

    def put_off(self, at: float, level: int, event: str, facts: Facts) -> None:
        """Buffer a line; `at` is in seconds since 1970."""
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
        """Write the buffered lines."""
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
        """Write lines, or count lost ones: a full disk or a closed pipe fails no call."""
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
