"""Compiled kernels as files: a cubin, and a record of what it holds with a digest of both."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gradwire_server.backends import kept_files

_log = logging.getLogger(__name__)


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


def kept(folder: Path, name: str) -> Cubin | None:
    """Return what a folder has under a name; None where that is nothing, or not whole."""
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
        pass  # a record that is no record
    _log.warning("damaged: it is compiled anew", extra={"facts": {"file": str(path)}})
    return None


def keep(folder: Path, name: str, code: bytes, lowered: dict[str, str], log: str) -> Cubin:
    """Write compiled kernels to a folder, or to one of this process where that cannot be."""
    try:
        return _keep(folder, name, code, lowered, log)
    except OSError as error:
        _log.warning("what is compiled cannot be kept: %s", error)
        return _keep(_private(), name, code, lowered, log)


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
    """Write a file that others see whole or not at all."""
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
    """Return a folder of this process alone."""
    made = Path(tempfile.mkdtemp(prefix="gradwire-cuda-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
