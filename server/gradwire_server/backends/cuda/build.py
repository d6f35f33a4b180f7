"""Compiles the kernels with NVRTC, without a device, and keeps what came out.

CuPy's own way of compiling flushes denormal numbers to zero and needs a device. So NVRTC is called
itself, and `cupy.RawModule(path=...)` loads the cubin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from gradwire_server.backends.cuda.programs import Kernel

_FOLDER = Path(__file__).parent
_HEADER = "numbers.cuh"

# The numerics contract, spelled out although the kernels' arithmetic leaves nothing to fuse.
_OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--ptxas-options=-v")

_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x")


class BuildError(RuntimeError):
    """Kernels cannot be compiled: NVRTC is missing, refuses them, or they spill registers."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """Compiled kernels of one file.

    path     of the cubin
    lowered  name expression of each kernel -> its name in the cubin
    log      what the compiler reported: registers, shared memory, spills
    """

    path: Path
    lowered: dict[str, str]
    log: str


def check() -> None:
    """Raise ImportError, saying what to do, where CuPy is missing or there twice, or headers are.

    Raises RuntimeError, with the folders that were searched, where NVRTC is missing.
    """
    present = [name for name in _PACKAGES if _is_installed(name)]
    if len(present) > 1:
        raise ImportError(
            f"{' and '.join(present)} are both installed and overwrite each other; "
            f"uninstall both, then install one of gradwire[cuda12] and gradwire[cuda13]"
        )
    _nvrtc().getVersion()  # loads its library, which importing the module does not
    _includes()


def build(source: str, expressions: Iterable[str], architecture: int, cache: Path) -> Cubin:
    """Compile kernels of one file for one architecture, or find what was compiled before.

    source        name of the file
    expressions   name expressions of its kernels
    architecture  compute capability: 90 is 9.0
    cache         folder in which cubins are kept; processes may share it

    Raises BuildError where that cannot be; ImportError without CuPy or NVRTC.
    """
    names = sorted(expressions)
    options = _options(f"-arch=sm_{architecture}")
    stem = cache / f"{Path(source).stem}-sm_{architecture}-{_key(source, names, options)}"
    path, record = stem.with_suffix(".cubin"), stem.with_suffix(".json")
    if not (path.exists() and record.exists()):
        code, lowered, log = _compiled(source, names, options, "cubin")
        cache.mkdir(parents=True, exist_ok=True)
        _write(path, code)
        _write(record, json.dumps({"lowered": lowered, "log": log}).encode())
    kept: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return Cubin(path, kept["lowered"], kept["log"])


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


def registers(log: str) -> dict[str, int]:
    """Return the registers of each kernel, by its lowered name, from what the compiler reported."""
    found = re.findall(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", log, re.DOTALL)
    return {name: int(count) for name, count in found}


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


def _key(source: str, names: Sequence[str], options: Sequence[str]) -> str:
    """Hash what the result depends on; not where headers lie, which the version stands for."""
    digest = hashlib.sha256()
    plain = [one for one in options if not one.startswith("-I")]
    texts = [(_FOLDER / name).read_text(encoding="utf-8") for name in (source, _HEADER)]
    for part in (*texts, *names, "", *plain, repr(_nvrtc().getVersion())):
        digest.update(f"{len(part)} {part}".encode())
    return digest.hexdigest()[:24]


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
        spilled = [line for line in log.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]
        if spilled:
            raise BuildError(f"{source}, {options}: registers are spilled: {log}")
        code = whole_elf(nvrtc.getCUBIN(program)) if kind == "cubin" else nvrtc.getPTX(program)
        lowered = {name: nvrtc.getLoweredName(program, name) for name in names}
    finally:
        nvrtc.destroyProgram(program)
    return (code if isinstance(code, bytes) else code.encode()), lowered, log


def _write(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).replace(path)


def _nvrtc() -> Any:
    """Import CuPy, which is optional and slow to import."""
    return import_module("cupy.cuda").nvrtc


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
