"""The process of a device: it applies plans for whoever connects, a thread for each connection."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.device_process.channels import PROTOCOL, Channel, Message
from gradwire_server.backends.device_process.plan_encoding import decoded
from gradwire_server.backends.device_process.shared_memory import SharedMemory
from gradwire_server.errors import DeviceLostError
from gradwire_server.plans import Plan

_log = logging.getLogger("gradwire_server")

_LONGEST_WHY = 1000


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Held:
    """A plan that lanes hold."""

    plan: Plan


class Plans:
    """Plans by their contents: equal ones are one object, as long as anybody holds it.

    A backend knows a plan again by its identity, and keeps its tables on the device.
    """

    def __init__(self) -> None:
        self._held = weakref.WeakValueDictionary[bytes, _Held]()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, plan: Plan) -> _Held:
        """Return what is held of plans equal to this one."""
        digest = hashlib.sha256()
        plan.digest_update(digest)
        with self._lock:
            return self._held.setdefault(digest.digest(), _Held(plan))


class DeviceServer:
    """Serves one device.

    memory  where the bytes of the device's memory that are taken are told, float64[1]
    lost    called once the device is lost, when whoever was computing has been told
    """

    def __init__(
        self, backend: Cuda, *, memory: npt.NDArray[np.float64], lost: Callable[[], None]
    ) -> None:
        self._backend, self._memory, self._lost = backend, memory, lost
        self._plans = Plans()
        self._watchers = set[Channel]()
        # Connections that are lanes, or may become some.
        self._lanes = 0
        self._changed = threading.Condition()

    def serve(self, listener: socket.socket, *, until: socket.socket) -> None:
        """Take whoever connects, until there is something to read from another socket."""
        listener.settimeout(0)  # another process may be quicker
        while True:
            ready, _, _ = select.select([listener, until], [], [])
            if until in ready:
                return
            with contextlib.suppress(BlockingIOError, PermissionError):
                connected, _ = listener.accept()
                channel = Channel(connected)
                with self._changed:
                    self._lanes += 1
                threading.Thread(target=self._answer, args=(channel,), daemon=True).start()

    def leave(self) -> None:
        """Tell all that another process has the device; wait until the last call has ended."""
        with self._changed:
            for watcher in self._watchers:
                with contextlib.suppress(ConnectionError):
                    watcher.send({"leaves": True})
            self._changed.wait_for(lambda: not self._lanes)

    def wait_until_unused(self) -> None:
        """Wait until nobody is connected."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lanes or self._watchers))

    def _answer(self, channel: Channel) -> None:
        fds = list[int]()
        try:
            message, fds = channel.receive()
            nbytes = message.get("lane")
            if message["protocol"] != PROTOCOL or nbytes is None:
                self._watched(channel)
            else:
                self._lane(channel, SharedMemory(fds[0], nbytes))
        except ConnectionError:
            return
        finally:
            with self._changed:
                self._lanes -= 1
                self._changed.notify_all()
                channel.close()
            _close(fds)

    def _watched(self, channel: Channel) -> None:
        with self._changed:
            self._lanes -= 1
            self._watchers.add(channel)
            self._changed.notify_all()
        try:
            channel.send({"protocol": PROTOCOL})
            channel.receive()
        finally:
            with self._changed:
                self._watchers.discard(channel)
                self._lanes += 1

    def _lane(self, channel: Channel, memory: SharedMemory) -> None:
        plans = dict[int, _Held]()
        while True:
            task, fds = channel.receive()
            try:
                own = SharedMemory(fds[0], os.fstat(fds[0]).st_size) if fds else memory
                answer = self._ended(task, own, plans)
            finally:
                _close(fds)
            self._memory[0] = self._backend.memory_taken
            with contextlib.suppress(ConnectionError):
                channel.send(answer)
            if answer["ended"] == "lost":
                self._lost()

    def _ended(self, task: Message, memory: SharedMemory, plans: dict[int, _Held]) -> Message:
        try:
            self._compute(task, memory, plans)
        except MemoryError as error:
            return {"ended": "memory", "why": _short(error)}
        except DeviceLostError as error:
            return {"ended": "lost", "why": _short(error)}
        except Exception as error:  # noqa: BLE001 - it is raised again where the call came from
            _log.exception("fault")
            return {"ended": "fault", "why": _short(f"{type(error).__name__}: {error}")}
        return {"ended": "done"}

    def _compute(self, task: Message, memory: SharedMemory, plans: dict[int, _Held]) -> None:
        x, y = memory.view(task["x"]), memory.view(task["y"])
        tables = [memory.view(one) for one in task["tables"]]
        sums = task.get("accumulate")
        if sums is not None:
            bands = decoded(task["new"], tables).passes[0].map
            self._backend.accumulate(bands, x, y, axis=sums["axis"], carried=sums["carried"])
            return
        number = task["plan"]
        held = self._plans.hold(decoded(task["new"], tables)) if "new" in task else plans[number]
        if number is not None:
            plans[number] = held
        self._backend.apply(held.plan, x, y)


def _short(why: object) -> str:
    return " ".join(str(why).split())[:_LONGEST_WHY]


def _close(fds: Sequence[int]) -> None:
    for one in fds:
        os.close(one)
