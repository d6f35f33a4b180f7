"""One device as a worker sees it: there, or away until its process is replaced."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from gradwire_server.backends.device_process.channels import PROTOCOL, Channel
from gradwire_server.backends.device_process.jobs import Address
from gradwire_server.backends.device_process.lanes import DeviceLostError, Lane

_log = logging.getLogger(__name__)

# Calls of one worker at one device: while one computes, others copy.
LANES = 4
# Before another try where nobody listens at all, or not to this process.
_PAUSE_S = 5.0


class Link:
    """A device, for the threads of a worker. A thread of its own watches the device's process.

    address     where it is
    lane_bytes  memory shared for each of its LANES calls at once; others wait
    changed     told whenever it has come or gone
    """

    def __init__(self, address: Address, *, lane_bytes: int, changed: Callable[[], None]) -> None:
        self.address = address
        self._lane_bytes, self._changed = lane_bytes, changed
        self._is_there = self._closed = False
        # Of the calls that wait too.
        self.busy = 0
        self._free = threading.Condition()
        self._idle = list[Lane]()
        self._lanes = set[Lane]()
        self._opening = 0
        self._watching: Channel | None = None
        name = f"gradwire-device-{address.number}"
        threading.Thread(target=self._watch, name=name, daemon=True).start()

    @property
    def is_there(self) -> bool:
        """Whether the device computes."""
        return self._is_there

    @contextmanager
    def lane(self) -> Generator[Lane]:
        """Wait for a lane; raises DeviceLostError where the device is away, or goes meanwhile."""
        with self._free:
            self.busy += 1
        try:
            lane = self._take()
            try:
                yield lane
            except BaseException as error:
                self._give_back(lane, spoiled=not isinstance(error, MemoryError | RuntimeError))
                raise
            self._give_back(lane, spoiled=False)
        finally:
            with self._free:
                self.busy -= 1

    def close(self) -> None:
        """Let go of the device."""
        with self._free:
            self._closed = True
            if self._watching is not None:
                self._watching.hang_up()

    def _take(self) -> Lane:
        with self._free:
            while True:
                if not self._is_there:
                    raise DeviceLostError("no process has it")
                if self._idle:
                    return self._idle.pop()
                if len(self._lanes) + self._opening < LANES:
                    break
                self._free.wait()
            self._opening += 1
        try:
            lane = Lane(self.address.socket, self._lane_bytes)
        except OSError as error:
            raise DeviceLostError("its process has ended") from error
        else:
            with self._free:
                self._lanes.add(lane)
            return lane
        finally:
            with self._free:
                self._opening -= 1
                self._free.notify()

    def _give_back(self, lane: Lane, *, spoiled: bool) -> None:
        with self._free:
            if spoiled or lane not in self._lanes:
                self._lanes.discard(lane)
                lane.close()
            else:
                self._idle.append(lane)
            self._free.notify()

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._follow(Channel.to(self.address.socket))
            except (OSError, ValueError) as error:
                facts = {"device": self.address.number, "error": error}
                _log.warning("no device", extra={"facts": facts})
                time.sleep(_PAUSE_S)

    def _follow(self, channel: Channel) -> None:
        """Wait for a process at the other end of a channel, and then until it leaves or ends."""
        with self._free:
            self._watching = channel
            if self._closed:
                channel.hang_up()
        try:
            channel.send({"protocol": PROTOCOL, "lane": None})
            answer, _ = channel.receive()
            if answer["protocol"] != PROTOCOL:
                raise ValueError(
                    f"its process speaks protocol {answer['protocol']}, this one "
                    f"{PROTOCOL}: restart the server"
                )
            self._note(there=True)
            channel.receive()
            # It leaves the device to another process, which is there already, and finishes calls.
            self._drop_lanes()
        except ConnectionError:
            self._note(there=False)
        finally:
            with self._free:
                self._watching = None
                channel.close()

    def _note(self, *, there: bool) -> None:
        with self._free:
            if self._is_there is there:
                return
            self._is_there = there
            if not there:
                for lane in self._lanes.difference(self._idle):
                    lane.hang_up()
        self._drop_lanes()
        self._changed()

    def _drop_lanes(self) -> None:
        """Use none of these lanes for another call."""
        with self._free:
            for lane in self._idle:
                lane.close()
            self._idle.clear()
            self._lanes.clear()
            self._free.notify_all()
