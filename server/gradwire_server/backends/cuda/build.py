"""Compilation of the kernels by NVRTC, and a cache of cubins.

CuPy's own compilation flushes denormal numbers to zero and needs a device. So this module calls
NVRTC through `cupy.cuda.nvrtc`, which needs no device.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from gradwire_server.backends import cache_files
from gradwire_server.backends.cuda.programs import source

_log = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent

# The numerics contract, spelled out although the kernels' arithmetic leaves nothing to fuse.
_OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true")

_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x")


class BuildError(RuntimeError):
    """Kernels cannot be compiled: NVRTC is missing or refuses them."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Compiled kernels.

    code     cubin or PTX
    lowered  name expression of each kernel -> its name in the code
    """

    code: bytes
    lowered: dict[str, str]


def check() -> None:
    """Raise ImportError, with advice, if CuPy cannot compile kernels.

    ImportError: CuPy or headers are missing, or CuPy is installed twice. RuntimeError, with the
    searched folders: NVRTC is missing.
    """
    present = [name for name in _PACKAGES if any(metadata.distributions(name=name))]
    if len(present) > 1:
        raise ImportError(
            f"{' and '.join(present)} are both installed and overwrite each other; "
            f"uninstall both, then install one of gradwire[cuda12] and gradwire[cuda13]"
        )
    _nvrtc().getVersion()  # loads its library, which importing the module does not
    _headers()


def cubin(kernels: Iterable[str], architecture: int, folder: Path) -> Compiled:
    """Return compiled kernels for one architecture.

    They are read from the cache, or compiled and stored there.

    kernels       their name expressions
    architecture  compute capability: 90 is 9.0
    folder        cache of cubins, which processes may share; if it is not writable, each process
                  compiles

    Raises BuildError if compilation fails; ImportError without CuPy or NVRTC.
    """
    names = sorted(kernels)
    path = folder / version() / f"sm_{architecture}-{_hash(names)}.kernels"
    kept = cache_files.read(path)
    if kept is not None:
        described, _, code = kept.partition(b"\n")
        return Compiled(code, json.loads(described))
    made = compiled(names, f"sm_{architecture}")
    try:
        cache_files.write(path, json.dumps(made.lowered).encode() + b"\n" + made.code)
    except OSError as error:
        _log.warning("compiled kernels cannot be cached: %s", error)
    return made


def compiled(kernels: Collection[str], target: str) -> Compiled:
    """Compile kernels to a cubin or to PTX.

    The target is sm_90 for a cubin, compute_90 for PTX, and the like.
    """
    nvrtc = _nvrtc()
    text = "".join(f'#include "{one}"\n' for one in sorted(set(map(source, kernels))))
    files = _files()
    program = nvrtc.createProgram(text, "kernels.cu", list(files.values()), list(files))
    try:
        for name in kernels:
            nvrtc.addNameExpression(program, name)
        try:
            nvrtc.compileProgram(program, [*_OPTIONS, f"-arch={target}", f"-I{_headers()}"])
        except nvrtc.NVRTCError as error:
            raise BuildError(f"{error}: {nvrtc.getProgramLog(program)}") from error
        is_cubin = target.startswith("sm_")
        # CuPy drops the last byte of a cubin, as if it ended a string. Tools reject such a file,
        # which ends before its last table.
        code = nvrtc.getCUBIN(program) + b"\0" if is_cubin else nvrtc.getPTX(program)
        lowered = {name: nvrtc.getLoweredName(program, name) for name in kernels}
        return Compiled(code, lowered)
    finally:
        nvrtc.destroyProgram(program)


def version() -> str:
    """Return the name of the cache folder.

    It is a hash of sources, options and compiler version.
    """
    # Not the headers' folder: the version identifies them.
    return _hash([repr(_files()), *_OPTIONS, repr(_nvrtc().getVersion())])[:16]


def _files() -> dict[bytes, bytes]:
    """Return the sources and their header by name."""
    return {one.name.encode(): one.read_bytes() for one in sorted(_FOLDER.glob("*.cu*"))}


def _headers() -> str:
    """Return the folder of CUDA's own headers."""
    folder: str | None = import_module("cuda.pathfinder").find_nvidia_header_directory("cudart")
    if folder is None:
        raise ImportError(
            "the headers of CUDA's runtime are missing; gradwire[cuda12] and gradwire[cuda13] "
            "bring them"
        )
    return folder


def _hash(texts: Iterable[str]) -> str:
    return cache_files.digest("\0".join(texts).encode()).hex()


def _nvrtc() -> Any:
    """Import CuPy, which is optional and slow to import."""
    return import_module("cupy.cuda").nvrtc
