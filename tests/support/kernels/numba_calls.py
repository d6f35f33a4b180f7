"""The compiled backend where there is numba: its ways, what is asserted of it, its helpers.

Arrays in guarded memory begin or end where no one may read or write: who does ends with SIGSEGV.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from gradwire_server import backends
from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.plans import Plan
from support.kernels import kernel_maps as maps
from support.kernels import kernel_table
from support.kernels.backend_calls import applied
from support.kernels.kernel_table import Case, cases, check, numbers, some_formats
from support.oracles import oracles
from support.processes import environment

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

_PACKAGE = "gradwire_server.backends.numba_cpu"
# Instructions that multiply and add with one rounding: of x86-64, AArch64, POWER and RISC-V; and
# the functions of C's library that do.
_FUSED = re.compile(
    r"^\s+(v?fn?m(?:add|sub|la|ls)\w*|xv?s?n?m(?:add|sub)\w*|fml[as]l?2?)\b|\b(fmaf?)\b",
    re.MULTILINE,
)
_mprotect = ctypes.CDLL(None).mprotect


@contextmanager
def small_shares() -> Generator[None]:
    """Let threads share tensors of the sizes that tests have time for, and wake up for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_PACKAGE}.backend._WORK_OF_A_THREAD", 1 << 10)
        patch.setattr(f"{_PACKAGE}.backend._WAKING", 0)
        yield


@cache
def compiled(threads: int) -> Backend:
    backend, _ = backends.choose("numba_cpu", threads=threads)
    backend.warm_up()
    return backend


@contextmanager
def streaming(threads: int) -> Generator[Backend]:
    """Let a compiled backend write all results past the caches, short rows as well."""
    # Importing jobs first would compile into numba's own cache, which misses changes of callees.
    import_module(f"{_PACKAGE}.compilation").load("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_PACKAGE}.jobs._LEAST_STREAMED", 0)
        made: Backend = import_module(_PACKAGE).NumbaCpu(threads=threads, streamed_bytes=0)
        made.warm_up()
        yield made


def run_program(
    program: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    beside = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", beside + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment(env),
    )


def fused(code: str) -> list[str]:
    return [one or other for one, other in _FUSED.findall(code)]


@cache
def assembly() -> dict[str, str]:
    """Return the assembly of compiled functions by their names, such as "blocks.run".

    It is made from LLVM's optimized code, which is kept with what is loaded from a cache, too;
    numba itself does not show that.
    """
    compiled(1)
    texts = defaultdict[str, str](str)
    kinds = {"CFunc", "CPUDispatcher"}
    for one in (each for each in gc.get_objects() if type(each).__name__ in kinds):
        package, _, module = one.__wrapped__.__module__.rpartition(".")
        if package != _PACKAGE:
            continue
        name = f"{module}.{one.__qualname__}"
        if type(one).__name__ == "CFunc":
            libraries = [one._library]  # noqa: SLF001 - numba has no public way
        else:
            libraries = [each.library for each in one.overloads.values()]
        for library in libraries:
            code = library._get_module_for_linking()  # noqa: SLF001 - likewise
            texts[name] += str(library.codegen._tm.emit_assembly(code))  # noqa: SLF001 - likewise
    return texts


def check_ways() -> None:
    """Assert that the listed cases take each method of this processor, in every way there is.

    That is with a depth stage, in several tiles, with a band longer than what is held of a row, and
    in one job to three.
    """
    can_pick = import_module(f"{_PACKAGE}.instructions").CAN_PICK
    records = vars(import_module(f"{_PACKAGE}.records"))
    names = ("NO_WIDTH", "CHANNELS", "COLUMNS", "HALVE", "DOUBLE", *["PERMUTE"] * can_pick)
    methods = {records[name] for name in names}
    compile_jobs = import_module(f"{_PACKAGE}.compilation").load("").jobs
    for compute in (np.dtype(np.float32), np.dtype(np.float64)):
        table = partial(compile_jobs.Table.of, compute=compute)
        staged, tiled, chunked, counts = set[int](), set[int](), set[int](), set[int]()
        for plan in (case.plan for case in cases()):
            sizes = plan.input_shape, plan.passes, (compute, compute)
            jobs = compile_jobs.jobs_of(*sizes, table, streamed_bytes=1 << 60)
            counts.add(len(jobs))
            for record in (job.record[0] for job in jobs):
                method = int(record["method"])
                if record["depth"]["moves"]:
                    staged.add(method)
                if record["tiles"] > 1:
                    tiled.add(method)
                if record["chunk"] < plan.passes[-1].map.counts.max():
                    chunked.add(method)
        assert staged | {records["NO_WIDTH"]} == tiled == methods
        assert chunked
        assert {1, 2, 3} <= counts


def check_all(backend: Backend) -> None:
    """Assert NumPy's bits of every listed case in some formats, and of conversions."""
    for case in cases():
        for arriving, leaving in some_formats(case):
            check(backend, case.plan, numbers(case, arriving, special=True), leaving)
    check_conversions(backend)


def check_case(backend: Backend, case: Case) -> None:
    for special in (False, True):
        for arriving, leaving in kernel_table.FORMATS[special::2]:
            check(backend, case.plan, numbers(case, arriving, special=special), leaving)


def check_conversions(backend: Backend) -> None:
    """Assert that all 16-bit numbers come in exactly, and float32 goes out rounded to nearest even.

    They are copied in rows of different lengths to other places.
    """
    for narrow, rows in product(oracles.STORAGE_TYPES[1:3], (2, 3)):
        held = np.arange(1 << 16, dtype=np.uint16).view(narrow)
        bands, wide = maps.backwards(maps.nearest(rows, rows)), kernel_table.to_be_rounded(narrow)
        for x, dtype in ((held, np.float32), (held, narrow), (wide, narrow)):
            given = x[: len(x) // rows * rows].reshape(rows, -1)
            plan = Plan.build([bands, None], given.shape)
            with np.errstate(all="ignore"):
                expected = given[::-1].astype(dtype)
                oracles.same_bits(applied(backend, plan, given, dtype), expected)


class GuardedMemory:
    """A piece of memory between two pages that may not be touched.

    size  bytes, at least
    """

    def __init__(self, size: int) -> None:
        self._size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self._size + 2 * mmap.PAGESIZE)
        self._forbid(0, mmap.PAGESIZE)
        self._forbid(mmap.PAGESIZE + self._size, mmap.PAGESIZE)

    def shut(self) -> None:
        self._forbid(mmap.PAGESIZE, self._size)

    def _forbid(self, place: int, size: int) -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        no_access = 0
        failed = _mprotect(ctypes.c_void_p(start + place), ctypes.c_size_t(size), no_access)
        assert not failed

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike, *, at_end: bool) -> oracles.Tensor:
        """Return an array that ends where the memory ends, or begins where it begins."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        assert size <= self._size
        offset = mmap.PAGESIZE + (self._size - size if at_end else 0)
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def holding(self, values: oracles.Tensor, *, at_end: bool) -> oracles.Tensor:
        array = self.array(values.shape, values.dtype, at_end=at_end)
        array[...] = values
        return array


def guarded_scratch(task: int, memory: GuardedMemory, *, at_end: bool) -> SimpleNamespace:
    """Stand for the buffers of a thread: exactly as many bytes as a job has asked for."""

    def address(size: int) -> int:
        return memory.array([size], np.uint8, at_end=at_end).ctypes.data // 64 * 64

    return SimpleNamespace(task=task, address=address)


def check_guarded_cases(backend: Backend) -> None:
    """Assert NumPy's bits of all listed cases, in some formats, with guarded buffers."""
    own = import_module(f"{_PACKAGE}.threads").Scratch()
    memory = GuardedMemory(1 << 24)
    shapes = [shape for one in cases() for shape in (one.plan.input_shape, one.plan.output_shape)]
    source, target = (GuardedMemory(8 * max(map(math.prod, shapes))) for _ in "xy")
    for case, (arriving, leaving) in ((one, some) for one in cases() for some in some_formats(one)):
        ordinary = numbers(case, arriving, special=False)
        expected = applied(NumpyCpu(), case.plan, ordinary, leaving)
        for at_end in (False, True):
            x = source.holding(ordinary, at_end=at_end)
            y = target.array(expected.shape, leaving, at_end=at_end)
            vars(backend)["_scratch"] = guarded_scratch(own.task, memory, at_end=at_end)
            backend.apply(case.plan, x, y)
            oracles.same_bits(y, expected)


def check_guarded_sums() -> None:
    backend = compiled(1)
    source, target = GuardedMemory(1 << 20), GuardedMemory(1 << 20)
    bands = maps.cubic(29, 97).adjoint()
    for inner, dtype in product([1, 5, 8, 16, 17, 40, 64, 67, 130], [np.float32, np.float64]):
        whole = np.random.default_rng(inner).standard_normal((1, 97, inner)).astype(dtype)
        expected = np.empty((1, bands.outputs, inner), dtype)
        NumpyCpu().accumulate(bands, whole, expected, axis=1, carried=0)
        for at_end in (False, True):
            y = target.array(expected.shape, dtype, at_end=at_end)
            carried = 0
            for low, high in pairwise([0, 40, 41, 97]):
                x = source.holding(whole[:, low:high], at_end=at_end)
                piece = bands.window(0, bands.outputs, low, high)
                backend.accumulate(piece, x, y, axis=1, carried=carried)
                carried = int((bands.start < high).sum())
            oracles.same_bits(y, expected)
