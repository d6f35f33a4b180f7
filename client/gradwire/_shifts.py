"""When one of several who work on parts of a whole gives up for now, and when for good."""

from __future__ import annotations

import threading


class Shifts:
    """Those at work on one whole: one who cannot go on waits until another one has ended.

    What the other one held, such as the only stream that a server has room for, may be free then.
    The last one at work has nobody to wait for.

    workers  how many there are
    resting  how many wait
    ended    how many have done their part
    """

    def __init__(self, workers: int) -> None:
        self._working = workers
        self.resting = self.ended = 0
        self._stopped = False
        self._changed = threading.Condition()

    def end(self) -> None:
        """Note that one has done its part; wake all who wait."""
        with self._changed:
            self.ended += 1
            self._working += self.resting - 1
            self.resting = 0
            self._changed.notify_all()

    def stop(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def rest(self, since: int) -> bool:
        """Wait until more have ended than `since`; return False where nobody is left to wait for.

        True after stop(), at once.
        """
        with self._changed:
            if self._stopped or self.ended > since:
                return True
            if self._working == 1:
                return False
            self._working -= 1
            self.resting += 1
            self._changed.wait_for(lambda: self._stopped or self.ended > since)
            return True
