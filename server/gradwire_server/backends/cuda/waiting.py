"""Calls that wait for a stream: in order of arrival, and equal small ones together."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic, Protocol, TypeVar

from gradwire_server.backends.cuda.device import DeviceLostError

# Calls computed together: so many, and of so many bytes in all.
MOST_TOGETHER = 64
MOST_BYTES_TOGETHER = 2 << 20


class Waits(Protocol):
    """What decides who is computed with whom.

    key     equal for calls that one program may compute together; None for one that is alone
    nbytes  of what it reads and writes
    """

    @property
    def key(self) -> Hashable | None: ...  # noqa: D102 - above

    @property
    def nbytes(self) -> int: ...  # noqa: D102


W = TypeVar("W", bound=Waits)


def joining(first: W, others: Iterable[W]) -> list[W]:
    """Return those of the others, in their order, that are computed together with the first."""
    joined, nbytes = list[W](), first.nbytes
    if first.key is None:
        return joined
    for one in others:
        if len(joined) + 1 == MOST_TOGETHER:
            break
        if one.key == first.key and nbytes + one.nbytes <= MOST_BYTES_TOGETHER:
            joined.append(one)
            nbytes += one.nbytes
    return joined


C = TypeVar("C")
S = TypeVar("S")


@dataclass(eq=False)
class Waiter(Generic[C, S]):
    """A call that wants a stream.

    call    what it is
    key     as Waits says
    nbytes  likewise
    slot    that it has been given; None if another call computes it as well
    joined  that it is to compute too
    lost    why the device is lost, where that is how it ended
    done    whether another call has computed it
    awake   set when one of these is known; None if it did not have to wait
    """

    call: C
    key: Hashable | None
    nbytes: int
    slot: S | None = None
    joined: Sequence[Waiter[C, S]] = ()
    lost: str = ""
    done: bool = False
    awake: Event | None = None


class Slots(Generic[C, S]):
    """Streams that are idle, and calls that wait for one. Threads may share it."""

    def __init__(self, slots: Iterable[S]) -> None:
        # The one used last is taken first: its memory has grown already.
        self._idle = list(slots)
        self._waiting = deque[Waiter[C, S]]()
        self._lock = Lock()

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def take(self, waiter: Waiter[C, S]) -> S | None:
        """Wait for a slot, or until another call has computed this one.

        Returns the slot, for this call and those that joined it; None where it is done or must try
        again alone. Raises DeviceLostError where that is how it ended.
        """
        with self._lock:
            if self._idle:
                return self._idle.pop()
            waiter.awake = awake = Event()
            self._waiting.append(waiter)
        try:
            awake.wait()
        except BaseException:
            self._withdraw(waiter, awake)
            raise
        if waiter.lost:
            raise DeviceLostError(waiter.lost)
        return waiter.slot

    def take_idle(self) -> S | None:
        """Return a slot that nobody wants; None where there is none."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def give_back(self, slot: S) -> None:
        """Let the call that has waited longest have a slot, with those that it can compute too."""
        with self._lock:
            if not self._waiting:
                self._idle.append(slot)
                return
            first = self._waiting.popleft()
            first.joined = joining(first, self._waiting)
            for one in first.joined:
                self._waiting.remove(one)
            first.slot = slot
        _wake(first)

    def _withdraw(self, waiter: Waiter[C, S], awake: Event) -> None:
        """Take a call out that was interrupted."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                return
        awake.wait()  # it has a slot, or its arrays are being written
        if waiter.slot is not None:
            send_off(waiter.joined)
            self.give_back(waiter.slot)


def send_off(joined: Iterable[Waiter[C, S]], *, done: bool = False, lost: str = "") -> None:
    """Wake calls that another one was to compute too: done, or to try again alone."""
    for one in joined:
        one.done, one.lost = done, lost
        _wake(one)


def _wake(waiter: Waiter[C, S]) -> None:
    if waiter.awake is not None:
        waiter.awake.set()
