"""Log lines: an event and its facts, as key=value text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime


class _Formatter(logging.Formatter):
    """Formats one record in one line, but for a traceback in text.

    always  facts that every line tells
    """

    def __init__(self, always: Mapping[str, object]) -> None:
        super().__init__()
        self._always = always
        # Of the latest record; a handler formats one at a time.
        self._second, self._text_of_second = -1, ""

    def _time(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second, self._text_of_second = second, text
        return f"{self._text_of_second}.{int(1e3 * (record.created - second)):03d}+00:00"

    def _facts(self, record: logging.LogRecord) -> dict[str, object]:
        facts: dict[str, object] = getattr(record, "facts", {})
        return {**self._always, **facts} if self._always else facts

    def _traceback(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = [f" {name}={_word(value)}" for name, value in self._facts(record).items()]
        level, event = record.levelname.lower(), record.getMessage()
        line = f"{self._time(record)} {level:7} {event}{''.join(words)}"
        traceback = self._traceback(record)
        return f"{line}\n{traceback}" if traceback else line


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._facts(record),
        }
        if traceback := self._traceback(record):
            facts["traceback"] = traceback
        return json.dumps(facts, default=str)


def _word(value: object) -> str:
    text = str(value)
    if text.isprintable() and " " not in text and '"' not in text and "=" not in text and text:
        return text
    return json.dumps(text)


def configure(log_format: str, log_level: str, **always: object) -> None:
    """Send the server's log lines to stderr; each tells also the facts given here."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((_Json if log_format == "json" else _Text)(always))
    # What exports traces has warnings of its own.
    for name, level in (("gradwire_server", log_level.upper()), ("opentelemetry", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
