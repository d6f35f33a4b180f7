"""The backend of an I/O worker whose devices belong to other processes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from gradwire_server.backends.device_process.jobs import Address
from gradwire_server.backends.device_process.lanes import DeviceLostError, Lane
from gradwire_server.backends.device_process.links import Link
from gradwire_server.errors import DeviceAwayError
from gradwire_server.plans import BandedMap, Plan

Array = npt.NDArray[Any]


class DeviceProcesses:
    """Applies plans on the device that is least busy. Threads may share it.

    addresses      of the devices, at least one
    lane_bytes     memory shared with each device for each of a few calls at once
    retry_after_s  seconds after which a caller whose device is lost may retry

    Its methods raise DeviceAwayError where no device is there, or the one that computes is lost.
    """

    name = "cuda"
    splits_work = True
    may_wait = True

    def __init__(
        self, addresses: Sequence[Address], *, lane_bytes: int, retry_after_s: float
    ) -> None:
        self._retry_after_s = retry_after_s
        self._changed = threading.Condition()
        self._tell: Callable[[bool], object] | None = None
        self._told = False
        self._closed = False
        # Of devices that are equally busy another one each time.
        self._turns = itertools.count()
        self._links = list[Link]()
        for one in addresses:
            self._links.append(Link(one, lane_bytes=lane_bytes, changed=self._note_change))

    @property
    def there(self) -> int:
        """How many devices compute."""
        return sum(one.is_there for one in self._links)

    def watch(self, tell: Callable[[bool], object]) -> bool:
        """Return whether any device computes, and tell whenever that changes, from some thread."""
        with self._changed:
            self._tell, self._told = tell, bool(self.there)
            return self._told

    def close(self) -> None:
        """Let go of the devices; whoever waits for one raises RuntimeError."""
        with self._changed:
            self._tell, self._closed = None, True
            self._changed.notify_all()
        for one in self._links:
            one.close()

    def warm_up(self) -> None:
        """Wait until a device computes: its process compiles what it needs before."""
        with self._changed:
            self._changed.wait_for(lambda: self.there or self._closed)
            if self._closed:
                raise RuntimeError("the server stops")

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as the protocol of backends says."""
        if not y.size:
            return
        if not plan.passes and x.dtype == y.dtype:
            y[...] = x  # every bit of it, those of NaN too
            return
        self._run(lambda lane: lane.apply(plan, x, y))

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y, as the protocol of backends says."""
        if y.size:
            self._run(lambda lane: lane.accumulate(bands, x, y, axis=axis, carried=carried))

    def _run(self, task: Callable[[Lane], None]) -> None:
        there = [one for one in self._links if one.is_there]
        if not there:
            raise self._away("no device is there")
        turn = next(self._turns)
        link = min(
            enumerate(there), key=lambda each: (each[1].busy, (each[0] - turn) % len(there))
        )[1]
        try:
            with link.lane() as lane:
                task(lane)
        except DeviceLostError as error:
            raise self._away(f"device {link.address.number} is lost: {error}") from error

    def _away(self, why: str) -> DeviceAwayError:
        after = self._retry_after_s
        return DeviceAwayError(
            f"{why}; it is being opened anew: retry after {after} s", retry_after_s=after
        )

    def _note_change(self) -> None:
        with self._changed:
            self._changed.notify_all()
            there = bool(self.there)
            if self._tell is not None and there is not self._told:
                self._told = there
                self._tell(there)
