"""A record of the Python frames that a process's threads enter.

A frame counts whenever it is entered: a coroutine or a generator also each time it is resumed.
Compiled code, numba's kernels included, has no frames.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType

# After a call its threads still count, and log lines are written together, some 0.1 s later: work
# has ended when no frame came for so long.
_QUIET_S = 0.15


class Recorder:
    """Notes the modules of the frames that this thread and those started later enter."""

    def __init__(self) -> None:
        self._entered: list[str] = []
        self._recording = False
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and self._recording:
            # Appending is atomic, so that threads need no lock.
            self._entered.append(frame.f_globals.get("__name__", ""))

    def start(self) -> None:
        """Forget what was noted, and note from now on."""
        self._entered = []
        self._recording = True

    def settle(self) -> None:
        """Wait until no frame is entered any more."""
        before = -1
        while len(self._entered) != before:
            before = len(self._entered)
            time.sleep(_QUIET_S)

    def stop(self) -> Counter[str]:
        """Stop, and return how many frames of each module were entered."""
        self._recording = False
        return Counter(name for name in self._entered if name != __name__)

    def close(self) -> None:
        """Note nothing any more."""
        self._recording = False
        threading.setprofile(None)
        sys.setprofile(None)
