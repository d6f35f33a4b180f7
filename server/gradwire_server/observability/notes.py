"""What a process tells in words beside its counts: what it is, and its latest errors.

They lie behind the counts in the same memory, so that the process that answers for several workers
reads them where they are, of one that is busy or was killed too. The memory has a fixed size: an
error takes the place of the oldest one, and one that comes again only adds to its own count, so
that a caller's thousand refusals leave what else went wrong in sight.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Number of the error, when it came last, how often, length and checksum of the text.
_HEAD = struct.Struct("<QdQII")
_AGAIN = struct.Struct("<dQ")
_AGAIN_AT = 8
_SLOT_BYTES = 2048
_FACTS_BYTES = 4096
# Errors that are kept of one process.
MOST = 32
NOTES_BYTES = _FACTS_BYTES + MOST * _SLOT_BYTES
# An error that comes again after so long is another one.
_SAME_S = 60.0
_LONGEST = 600


@dataclass(frozen=True, slots=True)
class NotedError:
    """An error that calls ended in.

    latest      when it came last, in seconds since the Unix epoch
    count       how often it came
    request_id  of the first call
    """

    latest: float
    count: int
    method: str
    operator: str
    status: str
    reason: str
    message: str
    request_id: str


@dataclass(slots=True)
class _StoredNotes:
    """An error's slot, when the first one came, by a clock that never jumps, and how many."""

    slot: int
    first: float
    count: int = 1


class Notes:
    """The words of one process, in memory of NOTES_BYTES. Written by one thread."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._kept: dict[tuple[str, ...], _StoredNotes] = {}
        self._keys: list[tuple[str, ...] | None] = [None] * MOST
        self._number = 0

    def tell(self, facts: Mapping[str, str]) -> None:
        """Tell what this process is, in place of what it told before."""
        self._write(0, _FACTS_BYTES, 1, dict(facts))

    def told(self) -> dict[str, str]:
        """Return what the process told last; empty where that is nothing."""
        return self._read(0, _FACTS_BYTES) or {}

    def error(
        self,
        *,
        method: str,
        operator: str,
        status: str,
        reason: str,
        message: str,
        request_id: str,
        alike: str = "",
    ) -> None:
        """Note an error; alike tells which count as one, if not those with one message."""
        key = (method, operator, reason, alike or message)
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now - kept.first < _SAME_S:
            kept.count += 1
            again = _place(kept.slot) + _AGAIN_AT
            _AGAIN.pack_into(self._memory, again, time.time(), kept.count)
            return
        slot = self._number % MOST
        self._number += 1
        old = self._keys[slot]
        if old is not None and self._kept[old].slot == slot:
            del self._kept[old]
        self._keys[slot], self._kept[key] = key, _StoredNotes(slot, now)
        names = {"method": method, "operator": operator, "status": status, "reason": reason}
        told = {**names, "message": message[:_LONGEST], "request_id": request_id}
        self._write(_place(slot), _SLOT_BYTES, self._number, told)

    def errors(self) -> list[NotedError]:
        """Return the errors that are kept, in no order."""
        found: list[NotedError] = []
        for slot in range(MOST):
            told = self._read(_place(slot), _SLOT_BYTES)
            if told is not None:
                latest, count = _AGAIN.unpack_from(self._memory, _place(slot) + _AGAIN_AT)
                found.append(NotedError(latest, count, **told))
        return found

    def _write(self, place: int, size: int, number: int, told: Mapping[str, str]) -> None:
        text = json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")
        if len(text) > size - _HEAD.size:
            shorter = {name: value[: size // 64] for name, value in told.items()}
            text = json.dumps(shorter).encode()
        # A reader that sees a part of this finds that the checksum is another one.
        start = place + _HEAD.size
        self._memory[start : start + len(text)] = text
        _HEAD.pack_into(self._memory, place, number, time.time(), 1, len(text), zlib.crc32(text))

    def _read(self, place: int, size: int) -> dict[str, Any] | None:
        number, _, _, length, checksum = _HEAD.unpack_from(self._memory, place)
        if not number or length > size - _HEAD.size:
            return None
        start = place + _HEAD.size
        text = bytes(self._memory[start : start + length])
        if zlib.crc32(text) != checksum:
            return None
        told: dict[str, Any] = json.loads(text)
        return told


def newest(errors: Iterable[NotedError]) -> list[NotedError]:
    """Return the latest errors, as many as are kept of one process; the last one first."""
    return sorted(errors, key=lambda one: one.latest, reverse=True)[:MOST]


def _place(slot: int) -> int:
    return _FACTS_BYTES + slot * _SLOT_BYTES
