"""Kernels for a server that computes with NumPy until they are there.

NumPy has the same bits, so a server serves as soon as it listens. Kernels that the cache lacks are
compiled into it by a child process of low priority; the server only loads them, which takes less
memory and leaves the interpreter to its calls. Servers that share a cache take a lock on its
folder, so that one compiles and the others wait. Where the cache cannot be written to, a temporary
folder takes its place. A child that fails is tried again; then NumPy goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from gradwire_server.backends import StoresKernels, cache_files

_log = logging.getLogger("gradwire_server")

_PROGRAM = ("-m", "gradwire_server.backends.numba_cpu")
_TRIES = 3
_PAUSE_S = 5.0
_LOOK_AGAIN_S = 0.2


async def load_kernels(backend: StoresKernels, *, cache_dir: str) -> None:
    """Load the kernels of a backend; a child compiles missing ones first.

    cache_dir  folder of the cache; empty for the user's

    Raises RuntimeError if the child fails each time.
    """
    if await asyncio.to_thread(backend.load_stored, cache_dir):
        return
    failure = ""
    with _writable(cache_dir) as folder:
        async with _locked(folder):
            for number in range(_TRIES):
                if await asyncio.to_thread(backend.load_stored, str(folder)):
                    return
                if number:
                    await asyncio.sleep(_PAUSE_S)
                failure = await _compile(folder)
            if not await asyncio.to_thread(backend.load_stored, str(folder)):
                raise RuntimeError(f"kernels were not compiled: {failure}")


async def _compile(folder: Path) -> str:
    """Compile all kernels into a folder, in a child.

    The child ends with this process. Return what went wrong, empty if nothing did.
    """
    _log.info("compiling kernels, first start only", extra={"facts": {"folder": str(folder)}})
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *_PROGRAM, str(os.getpid()), str(folder)),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,  # Ctrl-C is for the server, which stops in order
    )
    try:
        _, told = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if not process.returncode:
        facts = {"seconds": round(time.monotonic() - began, 1)}
        _log.info("kernels are compiled", extra={"facts": facts})
        return ""
    last = told.decode(errors="replace").strip().rpartition("\n")[2]
    failure = f"the compiling process ended with status {process.returncode}: {last}"
    _log.warning("kernels were not compiled", extra={"facts": {"why": failure}})
    return failure


@contextlib.contextmanager
def _writable(cache_dir: str) -> Generator[Path]:
    """Yield the cache folder, or a temporary one if it is read-only."""
    folder = Path(cache_dir) if cache_dir else cache_files.user_folder("kernels")
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            _log.warning("kernels cannot be cached: %s", error)
            made = tempfile.TemporaryDirectory(prefix="gradwire-kernels-")
            folder = Path(stack.enter_context(made))
        yield folder


@contextlib.asynccontextmanager
async def _locked(folder: Path) -> AsyncGenerator[None]:
    """Hold the lock of a folder; wait for other processes.

    The lock ends with this process.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(_LOOK_AGAIN_S)
            except OSError:  # some network file systems have no locks: several compile
                break
            else:
                break
        yield
    finally:
        os.close(opened)
