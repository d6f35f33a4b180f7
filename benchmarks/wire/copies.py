"""Count of copies of each byte of a stream in the server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.servers import OURS, Server
from benchmarks.wire import loads
from benchmarks.wire.loads import Call
from benchmarks.wire.rounds import BARE, CHUNK, LARGE, LARGE_RESULT, numbers, start

_SOURCE = Path(__file__).with_name("copy_counter.c")
_CALLS = 4


def copies() -> str:
    """Count the bytes that memcpy and memmove copy.

    Only pieces of a page and more count.
    """
    source = numbers(LARGE)
    cases: dict[str, tuple[tuple[str, ...], Callable[[Server], Call]]] = {
        "raw bytes, bare": (
            (*BARE, "raw"),
            lambda server: loads.raw_stream(server, source, CHUNK),
        ),
        "identity": (OURS, lambda server: loads.framed_stream(server, source, CHUNK)),
        "bilinear": (OURS, lambda server: loads.sdk(server, source, LARGE_RESULT)),
    }
    with TemporaryDirectory() as folder:
        library = Path(folder) / "copy_counter.so"
        flags = ["-O2", "-shared", "-fPIC", "-fno-builtin", "-o", str(library), str(_SOURCE)]
        subprocess.run(["cc", *flags, "-ldl"], check=True)  # noqa: S607 - the system's own
        lines = [
            f"{name:20}{_copied(arguments, call, library) / 1e6:8.1f} MB copied per call\n"
            for name, (arguments, call) in cases.items()
        ]
    return f"{source.nbytes / 1e6:.1f} MB up\n" + "".join(lines)


def _copied(arguments: tuple[str, ...], of: Callable[[Server], Call], library: Path) -> float:
    counter = library.with_name("copied")
    counter.write_bytes(bytes(8))
    with ExitStack() as stack:
        env = {"LD_PRELOAD": str(library), "COPY_COUNTER": str(counter)}
        call = of(start(stack, *arguments, env=env))
        call()
        before = int.from_bytes(counter.read_bytes(), "little")
        for _ in range(_CALLS):
            call()
        return (int.from_bytes(counter.read_bytes(), "little") - before) / _CALLS
