"""Compilation of the kernels by NVRTC, without a device, and a cache of cubins.

CuPy's own compilation flushes denormal numbers to zero and needs a device. So this module calls
NVRTC through `cupy.cuda.nvrtc`, and `cupy.RawModule(path=...)` loads the cubin. A cached cubin has
a record beside it, with a digest of both.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from gradwire_server.backends import kept_files
from gradwire_server.backends.cuda.programs import Kernel

_log = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_HEADER = "numbers.cuh"

# The numerics contract, spelled out although the kernels' arithmetic leaves nothing to fuse.
_OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--ptxas-options=-v")

_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x")


class BuildError(RuntimeError):
    """Kernels cannot be compiled: NVRTC is missing or refuses them."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """Compiled kernels of one file.

    path     of the cubin
    lowered  name expression of each kernel -> its name in the cubin
    log      the compiler's report: registers, shared memory, spills
    """

    path: Path
    lowered: dict[str, str]
    log: str


def check() -> None:
    """Raise ImportError, saying what to do, where CuPy is missing or there twice, or headers are.

    Raises RuntimeError, with the folders that were searched, where NVRTC is missing.
    """
    present = [name for name in _PACKAGES if any(metadata.distributions(name=name))]
    if len(present) > 1:
        raise ImportError(
            f"{' and '.join(present)} are both installed and overwrite each other; "
            f"uninstall both, then install one of gradwire[cuda12] and gradwire[cuda13]"
        )
    _nvrtc().getVersion()  # loads its library, which importing the module does not
    _includes()


def build(source: str, expressions: Iterable[str], architecture: int, folder: Path) -> Cubin:
    """Compile kernels of one file for one architecture, or find what was compiled before.

    source        name of the file
    expressions   name expressions of its kernels
    architecture  compute capability: 90 is 9.0
    folder        cache of cubins, which processes may share; where it cannot be written to, each
                  process compiles

    Raises BuildError where that cannot be; ImportError without CuPy or NVRTC.
    """
    names = sorted(expressions)
    options = _options(f"-arch=sm_{architecture}")
    stem = f"{Path(source).stem}-sm_{architecture}-{_hash(names)[:24]}"
    cached = folder / version()
    found = _cached(cached, stem)
    if found is not None:
        return found
    compiled = _compiled(source, names, options, "cubin")
    try:
        return _keep(cached, stem, *compiled)
    except OSError as error:
        _log.warning("compiled kernels cannot be cached: %s", error)
        return _keep(_private(), stem, *compiled)


def version() -> str:
    """Name the code that is compiled, and what compiles it, as a folder of kept files."""
    texts = [one.read_text(encoding="utf-8") for one in sorted(_FOLDER.glob("*.cu*"))]
    # Not where headers lie: the version stands for them.
    return _hash([*texts, *_OPTIONS, repr(_nvrtc().getVersion())])[:16]


def ptx(source: str, expressions: Iterable[str], architecture: int) -> tuple[str, dict[str, str]]:
    """Return the same kernels as PTX, and the names they have in it."""
    options = _options(f"-arch=compute_{architecture}")
    code, lowered, _ = _compiled(source, sorted(expressions), options, "ptx")
    return code.rstrip(b"\0").decode(), lowered


def by_source(kernels: Iterable[Kernel]) -> dict[str, list[str]]:
    """Group kernels by the file that has them."""
    grouped = dict[str, list[str]]()
    for source, expression in sorted(set(kernels)):
        grouped.setdefault(source, []).append(expression)
    return grouped


def whole_elf(code: bytes) -> bytes:
    """Return a cubin with the zeros it lacks at its end.

    CuPy takes the last byte for a string's and leaves it out. In memory the next byte is a zero, so
    that goes unnoticed; a file ends before its last table.
    """
    # Of a 64-bit ELF header: where both tables begin, sizes and counts of their entries.
    programs, sections = struct.unpack_from("<2Q", code, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<4H", code, 54)
    end = max(programs + program_size * program_count, sections + section_size * section_count)
    return code.ljust(end, b"\0")


def spills(log: str) -> list[str]:
    """Return the lines of what the compiler reported that tell of spilled registers."""
    return [line for line in log.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]


def _options(architecture: str) -> list[str]:
    return [*_OPTIONS, architecture, *(f"-I{folder}" for folder in _includes())]


def _includes() -> Sequence[str]:
    """Folders of CUDA's own headers."""
    folder: str | None = import_module("cuda.pathfinder").find_nvidia_header_directory("cudart")
    if folder is None:
        raise ImportError(
            "the headers of CUDA's runtime are missing; gradwire[cuda12] and gradwire[cuda13] "
            "bring them"
        )
    return [folder]


def _hash(texts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for part in texts:
        found.update(f"{len(part)} {part}".encode())
    return found.hexdigest()


def _compiled(
    source: str, names: Sequence[str], options: Sequence[str], kind: str
) -> tuple[bytes, dict[str, str], str]:
    nvrtc = _nvrtc()
    text = (_FOLDER / source).read_text(encoding="utf-8")
    header = (_FOLDER / _HEADER).read_text(encoding="utf-8")
    program = nvrtc.createProgram(text, source, [header.encode()], [_HEADER.encode()])
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        try:
            nvrtc.compileProgram(program, list(options))
        except nvrtc.NVRTCError as error:
            raise BuildError(f"{source}: {error}: {nvrtc.getProgramLog(program)}") from error
        log: str = nvrtc.getProgramLog(program)
        code = whole_elf(nvrtc.getCUBIN(program)) if kind == "cubin" else nvrtc.getPTX(program)
        lowered = {name: nvrtc.getLoweredName(program, name) for name in names}
    finally:
        nvrtc.destroyProgram(program)
    return (code if isinstance(code, bytes) else code.encode()), lowered, log


def _nvrtc() -> Any:
    """Import CuPy, which is optional and slow to import."""
    return import_module("cupy.cuda").nvrtc


def _cached(folder: Path, name: str) -> Cubin | None:
    """Return the cached kernels of this name; None where there are none, or damaged ones."""
    path, record = _files(folder, name)
    try:
        code, text = path.read_bytes(), record.read_bytes()
    except OSError:
        return None
    try:
        found: dict[str, Any] = json.loads(text)
        lowered, log = found["lowered"], found["log"]
        if found["digest"] == _digest(code, lowered, log):
            return Cubin(path, lowered, log)
    except (ValueError, TypeError, KeyError):
        pass  # not a record
    _log.warning("damaged cubin: it is compiled again", extra={"facts": {"file": str(path)}})
    return None


def _keep(folder: Path, name: str, code: bytes, lowered: dict[str, str], log: str) -> Cubin:
    path, record = _files(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    written = {"digest": _digest(code, lowered, log), "lowered": lowered, "log": log}
    _write(path, code)
    _write(record, json.dumps(written).encode())
    return Cubin(path, lowered, log)


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.cubin", folder / f"{name}.json"


def _digest(code: bytes, lowered: dict[str, str], log: str) -> str:
    described = json.dumps([lowered, log], sort_keys=True).encode()
    return kept_files.digest(code + described).hex()


def _write(path: Path, content: bytes) -> None:
    """Write a file that other processes see whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@cache
def _private() -> Path:
    """Return a folder for this process only."""
    made = Path(tempfile.mkdtemp(prefix="gradwire-cuda-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
