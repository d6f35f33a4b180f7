"""Streams that are let in: the share of each caller, and which gives way.

A stream costs its caller a few bytes to open. So one caller has three quarters of all streams at
most. Where there is no room, a stream gives way whose data has not begun to come for a moment: it
has computed nothing yet, and its caller may try again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from gradwire_server.errors import OverloadedError

# What others always find room in: this part of all streams.
_OTHERS_PART = 4
# Data that has not begun to come after this time is slow.
_MOMENT_S = 0.5


class AdmittedStream:
    """One stream that is open.

    caller    whose share it is in
    give_way  called with the error that ends it
    """

    def __init__(
        self,
        caller: Hashable,
        give_way: Callable[[OverloadedError], object],
        clock: Callable[[], float],
    ) -> None:
        self.caller = caller
        self.give_way: Callable[[OverloadedError], object] = give_way
        self._clock = clock
        self._waits_since: float | None = clock()
        self._has_data = False

    @property
    def waited_s(self) -> float:
        """Seconds that the server has waited for the first byte of its data."""
        return 0.0 if self._waits_since is None else self._clock() - self._waits_since

    def note_wait(self, *, for_caller: bool) -> None:
        """Note whether it waits for its caller now, or for the server."""
        if not self._has_data:
            self._waits_since = self._clock() if for_caller else None

    def note_data(self) -> None:
        """Note that data has come, or that none is needed."""
        self._has_data, self._waits_since = True, None


def _ended(_refused: OverloadedError) -> None:
    """Do nothing: the stream has ended."""


class AdmittedStreams:
    """All streams that are open.

    most  of all callers together
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._share = most - most // _OTHERS_PART
        self._all: dict[AdmittedStream, None] = {}
        self._by_caller: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def full_for(self, caller: Hashable) -> str:
        """Return what leaves a caller no room for one more; nothing where there is room."""
        own = self._by_caller[caller]
        if len(self) >= self.most:
            return f"{len(self)} streams are open"
        if own >= self._share:
            return f"this caller has {own} streams open, and {self._share} are its share"
        return ""

    def least(self, caller: Hashable) -> AdmittedStream | None:
        """Return the stream that gives way to one of a caller, if there is one.

        Where the caller has its share already, that is one of its own.
        """
        among = list(self._all)
        if self._by_caller[caller] >= self._share:
            among = [each for each in among if each.caller == caller]
        found = max(among, key=lambda each: each.waited_s, default=None)
        return None if found is None or found.waited_s < _MOMENT_S else found

    def add(self, stream: AdmittedStream) -> None:
        """Take one in."""
        self._all[stream] = None
        self._by_caller[stream.caller] += 1

    def discard(self, stream: AdmittedStream) -> bool:
        """Let one go; return whether it was there."""
        if stream not in self._all:
            return False
        del self._all[stream]
        # What it calls holds the stream's buffers, and often the stream: a cycle keeps both.
        stream.give_way = _ended
        self._by_caller[stream.caller] -= 1
        if not self._by_caller[stream.caller]:
            del self._by_caller[stream.caller]
        return True
