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

    def _facts(self, record: logging.LogRecord) -> dict[str, object]:
        facts: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._always,
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return facts


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = self._facts(record)
        traceback = facts.pop("traceback", None)
        head = f"{facts.pop('time')} {facts.pop('level'):7} {facts.pop('event')}"
        line = " ".join([head, *(f"{name}={_word(value)}" for name, value in facts.items())])
        return f"{line}\n{traceback}" if traceback else line


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self._facts(record), default=str)


def _word(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and not any(mark in text for mark in ' "=')
    return text if plain and text else json.dumps(text)


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
