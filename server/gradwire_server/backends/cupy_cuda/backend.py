"""The backend: plans and tensors on a device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from queue import Empty, LifoQueue
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np

from gradwire_server.backends.cuda import dispatch, kernels
from gradwire_server.backends.cuda.programs import Program
from gradwire_server.backends.cupy_cuda.device import Array, Device, DeviceLostError, Memory
from gradwire_server.backends.cupy_cuda.memory import BoundedMemory
from gradwire_server.backends.cupy_cuda.slots import Slot
from gradwire_server.plans import BandedMap, Plan
from gradwire_server.recent import Recent

# Calls that use the device at once: while one computes, others copy to it and from it.
_SLOTS = 4
# Recent plans whose tables are kept on the device, and their share of its memory.
_RECENT = 64
_RECENT_SHARE = 4

_STORAGE_TYPES = [np.dtype(one) for one in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A program with its tables on the device.

    plan    kept, so that its identity stays its own
    memory  that holds the tables
    tables  address of each
    """

    plan: Plan
    program: Program
    memory: Memory
    tables: list[int]


class Cuda:
    """Applies plans on a device. Threads may share it.

    memory_bytes  most of the device's memory that is taken at once
    slots         calls that use the device at once; others wait
    staged_bytes  pinned memory of each; 0 for the default
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
        self._memory = BoundedMemory(device, limit=memory_bytes, release=self._release)
        self._new_recent = partial(Recent[_Ready], most=_RECENT)
        self._recent_bytes = memory_bytes // _RECENT_SHARE
        self._recent = self._new_recent(max_weight=self._recent_bytes)
        # The one used last is taken first: its buffer has grown already.
        self._idle = LifoQueue[Slot]()
        for _ in range(slots):
            self._idle.put(Slot(device, self._memory, staged_bytes=staged_bytes))
        self._lock = Lock()
        self._is_warm = False
        self._lost = ""

    @property
    def memory_taken(self) -> int:
        """Bytes of the device's memory that are in use or kept for later."""
        return self._memory.taken

    def warm_up(self) -> None:
        """Compile all kernels, or load what was compiled before."""
        with self._lock:
            if not self._is_warm:
                every = {one for dtype in _STORAGE_TYPES for one in kernels.every(dtype)}
                self._device.load(sorted(every))
                self._is_warm = True

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as the protocol of backends says."""
        if not y.size:
            return
        if not plan.passes and x.dtype == y.dtype:
            y[...] = x  # every bit of it, those of NaN too
            return
        with self._slot() as slot:
            ready = self._ready(plan, (x.dtype, y.dtype), slot)
            slot.compute(ready.program, x, y, tables=ready.tables)

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y, as the protocol of backends says."""
        if not y.size:
            return
        program = dispatch.accumulation(
            bands,
            x.shape,
            x.dtype,
            axis=axis,
            carried=carried,
            multiprocessors=self._device.multiprocessors,
        )
        with self._slot() as slot:
            # Windows of a map come once each; their tables are not worth keeping.
            slot.compute(program, x, y, carried=carried > 0)

    @contextlib.contextmanager
    def _slot(self) -> Generator[Slot]:
        """Wait for a slot; nothing is pending on it afterwards, whatever happens."""
        self.warm_up()
        slot = self._idle.get()
        try:
            self._check()
            yield slot
        except DeviceLostError as error:
            self._note(error)
            raise
        except BaseException:
            with contextlib.suppress(DeviceLostError):
                slot.settle()
            raise
        finally:
            self._idle.put(slot)

    def _check(self) -> None:
        if self._lost:
            raise DeviceLostError(self._lost)

    def _note(self, error: DeviceLostError) -> None:
        if not self._lost:
            self._lost = str(error)
            _log.error(
                "device lost", extra={"facts": {"device": self._device.name, "error": error}}
            )

    def _ready(
        self, plan: Plan, formats: tuple[np.dtype[Any], np.dtype[Any]], slot: Slot
    ) -> _Ready:
        key = (id(plan), *formats)
        found = self._recent.get(key)
        if found is not None:
            return found
        program = dispatch.program(plan, *formats, multiprocessors=self._device.multiprocessors)
        memory, tables = slot.hold(program.tables)
        ready = _Ready(plan, program, memory, tables)
        self._recent.keep(key, ready, weight=memory.nbytes)
        return ready

    def _release(self) -> None:
        """Give back tables that no call uses now, and the buffers of slots that are idle."""
        self._recent = self._new_recent(max_weight=self._recent_bytes)
        idle = list[Slot]()
        with contextlib.suppress(Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for slot in idle:
            slot.release()
            self._idle.put(slot)
