"""What a server does beside its calls: it watches its loop and hands memory back."""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Callable
from typing import cast

from gradwire_server.service import Workshop

_log = logging.getLogger("gradwire_server")

_LAG_INTERVAL_S = 0.02
_LOG_INTERVAL_S = 1.0


async def watch_lag(workshop: Workshop) -> None:
    """Measure how late the loop is, and log who was refused unread, since nothing else does."""
    loop = asyncio.get_running_loop()
    told, next_word = 0, loop.time()
    while True:
        due = loop.time() + _LAG_INTERVAL_S
        await asyncio.sleep(_LAG_INTERVAL_S)
        now = loop.time()
        workshop.intake.note_lag(now - due)
        refused = workshop.admission.refusals["unread"]
        if refused > told and now >= next_word:
            lag_ms = round(workshop.intake.lag_s * 1e3, 3)
            facts = {"calls": refused - told, "lag_ms": lag_ms}
            _log.warning("refused unread", extra={"facts": facts})
            told, next_word = refused, now + _LOG_INTERVAL_S


async def trim_memory(workshop: Workshop) -> None:
    """Hand memory that calls have freed back to the system, once there are none for a while.

    The C library keeps for later what was freed in small pieces, and what threads freed.
    """
    after_s, trim = workshop.settings.trim_after_s, _trim()
    if not after_s or trim is None:
        return
    seen = trimmed = 0
    while True:
        await asyncio.sleep(after_s)
        calls = workshop.admission.entered + workshop.admission.refusals.total()
        if calls == seen != trimmed and workshop.active.none_left.is_set():
            await workshop.off_loop(trim)
            trimmed = seen
        seen = calls


def _trim() -> Callable[[], object] | None:
    """Find glibc's malloc_trim(3); other C libraries have none."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: cast("int", function(0))
