"""What a server does beside its calls: it hands memory back."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import cast

from gradwire_server.service import Workshop

_TRIMS = 2


async def trim_memory(workshop: Workshop) -> None:
    """Hand memory that calls have freed back to the system, once there are none for a while.

    The C library keeps for later what was freed in small pieces, and what threads freed.
    """
    after_s, trim = workshop.settings.trim_after_s, _trim()
    if not after_s or trim is None:
        return
    seen = idle = 0
    while True:
        await asyncio.sleep(after_s)
        calls = workshop.admission.entered + workshop.admission.refusals.total()
        idle = idle + 1 if calls == seen and workshop.active.none_left.is_set() else 0
        seen = calls
        # What threads free a moment after a call's end goes with the second one.
        if seen and 1 <= idle <= _TRIMS:
            await workshop.off_loop(trim)


def _trim() -> Callable[[], object] | None:
    """Find glibc's malloc_trim(3); other C libraries have none."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: cast("int", function(0))
