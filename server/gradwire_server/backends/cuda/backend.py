"""The backend: plans and tensors on a device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock

import ml_dtypes
import numpy as np

from gradwire_server.backends.cuda import kernels, waiting
from gradwire_server.backends.cuda.calls import Call
from gradwire_server.backends.cuda.device import (
    Array,
    Bytes,
    Device,
    DeviceError,
    DeviceLostError,
)
from gradwire_server.backends.cuda.registered import Registered
from gradwire_server.backends.cuda.slots import Slot
from gradwire_server.backends.cuda.taking import Taken, Taking
from gradwire_server.backends.cuda.turns import Turns
from gradwire_server.backends.cuda.waiting import Slots, Waiter
from gradwire_server.plans import BandedMap, Plan

# Streams. A call has one to itself, and a large one up to three while nobody waits.
_SLOTS = 4
# Pinned memory of each: what one part reads, or what it writes. The less, the more of it stays in
# the processor's cache while a call goes round its streams.
_STAGED_BYTES = 4 << 20
# Of the device's memory, for each.
_SLAB_BYTES = 16 << 20
# For tables of recent plans, of the limit; slabs leave twice that, so that there is room for the
# next ones before the oldest go.
_TABLES_SHARE = 8
# Calls of so few bytes are computed together, if they wait.
_SMALL_BYTES = 256 << 10

_STORAGE_TYPES = [np.dtype(one) for one in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]

_log = logging.getLogger(__name__)

_Waiter = Waiter[Call, Slot]


class Cuda:
    """Applies plans on a device. Threads may share it.

    memory_bytes  most of the device's memory that is taken at once
    slots         streams; calls beyond wait for one
    staged_bytes  pinned memory of each stream, 2 or more; 0 for the default
    """

    name = "cuda"
    splits_work = True
    may_wait = True

    def __init__(
        self,
        device: Device,
        *,
        memory_bytes: int,
        slots: int = _SLOTS,
        staged_bytes: int = 0,
    ) -> None:
        self._device = device
        self._registered = Registered()
        staged = staged_bytes or _STAGED_BYTES
        made = [Slot(device, self._registered, staged_bytes=staged) for _ in range(slots)]
        self._made = made
        self._slots = Slots[Call, Slot](made)
        tables = memory_bytes // _TABLES_SHARE
        self._taking = Taking(
            device,
            made,
            self._slots,
            limit=memory_bytes,
            table_bytes=tables,
            slab_bytes=min(_SLAB_BYTES, (memory_bytes - 2 * tables) // slots),
            part_bytes=staged,
        )
        self._turns = Turns()
        self._lock = Lock()
        self._is_warm = False
        self._lost = ""

    @property
    def memory_taken(self) -> int:
        """Bytes of the device's memory that are in use or kept for later."""
        return self._taking.memory_taken

    @property
    def calls_waiting(self) -> int:
        """Calls that wait for a stream."""
        return self._slots.waiting

    def register(self, memory: Bytes) -> None:
        """Have memory of the host pinned for as long as the array exists.

        Row-major tensors that lie in it are copied straight from it and to it. Where it cannot be
        pinned they go through the backend's own memory, as others do.
        """
        try:
            self._device.register(memory)
        except (DeviceError, MemoryError) as error:
            self._note(error)
            _log.warning(
                "not pinned: copies take longer",
                extra={"facts": {"bytes": memory.nbytes, "error": error}},
            )
        else:
            self._registered.add(memory)

    def warm_up(self) -> None:
        """Compile all kernels, or load what was compiled before, and use every stream once."""
        with self._lock:
            if not self._is_warm:
                every = {one for dtype in _STORAGE_TYPES for one in kernels.every(dtype)}
                self._device.load(sorted(every))
                with contextlib.suppress(MemoryError):  # which may be there once calls come
                    self._try_slots()
                self._is_warm = True

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as the protocol of backends says."""
        if not y.size:
            return
        if not plan.passes and x.dtype == y.dtype:
            y[...] = x  # every bit of it, those of NaN too
            return
        self._do(Call.of_plan(plan, x, y, multiprocessors=self._device.multiprocessors))

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y, as the protocol of backends says."""
        if not y.size:
            return
        many = self._device.multiprocessors
        self._do(Call.of_bands(bands, x, y, axis=axis, carried=carried, multiprocessors=many))

    def _do(self, call: Call) -> None:
        """Compute a call, or wait until another one that is equal has computed it too."""
        self.warm_up()
        small = call.nbytes <= _SMALL_BYTES
        waiter = _Waiter(call, call.key if small else None, call.nbytes)
        while (slot := self._slots.take(waiter)) is None:
            if waiter.done:
                return
            waiter = _Waiter(call, None, call.nbytes)
        try:
            self._lead(slot, waiter)
        except DeviceLostError as error:
            waiting.send_off(waiter.joined, lost=str(error))
            waiter.joined = ()
            raise
        finally:
            waiting.send_off(waiter.joined)
            self._slots.give_back(slot)

    def _lead(self, slot: Slot, waiter: _Waiter) -> None:
        """Compute a call together with those that joined it; without them if that fails."""
        if waiter.joined:
            with contextlib.suppress(MemoryError, DeviceError):
                self._compute(slot, [waiter.call, *(one.call for one in waiter.joined)])
                waiting.send_off(waiter.joined, done=True)
                waiter.joined = ()
                return
            self._check()
            waiting.send_off(waiter.joined)
            waiter.joined = ()
        self._compute(slot, [waiter.call])

    def _compute(self, slot: Slot, calls: Sequence[Call]) -> None:
        """Compute equal calls together, or one alone; nothing is pending afterwards."""
        self._check()
        try:
            taken = self._turns.take(partial(self._taking.take, slot, calls))
            try:
                self._run(taken)
            finally:
                self._taking.give_back(taken)
                self._turns.end()
        except DeviceError as error:
            self._note(error)
            raise

    def _run(self, taken: Taken) -> None:
        """Let every part go up and be computed while earlier ones come down."""
        try:
            for part in taken.parts:
                if len(taken.slots) > 1 and self._slots.waiting:
                    _finish(taken.slots)
                    self._taking.give_back_others(taken)
                slot = taken.slots[0]
                taken.slots.rotate(-1)
                slot.finish()
                slot.begin(part, taken.ready[part.slices])
            _finish(taken.slots)
        except BaseException:
            for slot in taken.slots:
                with contextlib.suppress(DeviceError):
                    slot.abandon()
            raise

    def _try_slots(self) -> None:
        """Compute one number on every stream, so that each has its memory before calls come."""
        one = np.ones(1, np.float16)
        plan = Plan(one.shape, one.shape, ())
        for slot in self._made:
            result = np.empty(1, np.float32)
            many = self._device.multiprocessors
            self._compute(slot, [Call.of_plan(plan, one, result, multiprocessors=many)])

    def _check(self) -> None:
        if self._lost:
            raise DeviceLostError(self._lost)

    def _note(self, error: Exception) -> None:
        if isinstance(error, DeviceLostError) and not self._lost:
            self._lost = str(error)
            _log.error(
                "device lost", extra={"facts": {"device": self._device.name, "error": error}}
            )


def _finish(slots: Iterable[Slot]) -> None:
    for slot in slots:
        slot.finish()
