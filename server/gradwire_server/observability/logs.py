"""Log lines of an event and its facts.

They are key=value text or JSON.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

_log = logging.getLogger("gradwire_server")

_REFUSALS_S = 1.0


class Refusals:
    """Log lines of refusals, at most one a second.

    A refusal is for lack of capacity or permission. A line for each would cost an overloaded server
    more than the refusal itself. Thread-safe.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next = -math.inf
        self._lock = threading.Lock()

    def note(self, why: str, **facts: str) -> None:
        """Count a refusal.

        `why` names the limiting setting; the latest facts are logged.
        """
        with self._lock:
            self._counts[why] += 1
            now = time.monotonic()
            if now < self._next:
                return
            counts = dict(self._counts)
            self._counts.clear()
            self._next = now + _REFUSALS_S
        _log.warning("refused", extra={"facts": {**counts, **facts}})


def _tell(level: int, event: str, /, **facts: object) -> None:
    """Log an event and its facts."""
    _log.log(level, event, extra={"facts": facts})


info = partial(_tell, logging.INFO)
warning = partial(_tell, logging.WARNING)
error = partial(_tell, logging.ERROR)


def configure(log_format: str, log_level: str, **always: object) -> None:
    """Send the server's log lines to stderr; `always` is added to each."""
    lines = _Lines(always, is_json=log_format == "json")
    # The trace exporter logs warnings of its own.
    for name, level in ((_log.name, log_level.upper()), ("opentelemetry", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [lines]
        logger.setLevel(level)
        logger.propagate = False


class _Lines(logging.Handler):
    """Handler that writes lines to stderr or counts lost ones.

    A full disk or a closed pipe fails no call.

    always  facts added to every line
    """

    def __init__(self, always: Mapping[str, object], *, is_json: bool) -> None:
        super().__init__()
        self._stream = sys.stderr
        self._always = always
        self._is_json = is_json
        # Lines lost since the last successful write.
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, and the number of lost ones."""
        text = self.format(record)
        if self._lost:
            facts = {"levelname": "WARNING", "msg": "lines lost", "facts": {"lines": self._lost}}
            text += self.format(logging.makeLogRecord(facts))
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._lost += 1
        else:
            self._lost = 0

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, event = record.levelname.lower(), record.getMessage()
        facts = {**self._always, **getattr(record, "facts", {})}
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        if self._is_json:
            told = {"time": at, "level": level, "event": event, **facts}
            told |= {"traceback": traceback} if traceback else {}
            return json.dumps(told, default=str) + "\n"
        words = [f" {name}={_word(value)}" for name, value in facts.items()]
        line = f"{at} {level:7} {event}{''.join(words)}\n"
        return f"{line}{traceback}\n" if traceback else line


def _word(value: object) -> str:
    text = str(value)
    if text.isprintable() and " " not in text and '"' not in text and "=" not in text and text:
        return text
    return json.dumps(text)
