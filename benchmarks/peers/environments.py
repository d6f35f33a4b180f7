"""Virtual environments of the peers, made on first use.

models  gradwire, PyTorch and a Python with a shared libpython, which Triton's stub loads
triton  tritonserver out of the wheel of PyTriton, unpacked without its dependencies
client  tritonclient, whose protobuf and grpcio are older than gradwire's

Each holds a stamp with its requirements; another pin makes it anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_PINS: Final = ROOT / "constraints" / "pinned.txt"
# The wheel has a stub for each of these; gradwire needs 3.11.
_STUBS: Final = ("3.11", "3.12", "3.13")
_LIBRARY: Final = """
import json, os, sys, sysconfig
value = sysconfig.get_config_var
folders = [value("LIBDIR") or "", os.path.join(value("LIBDIR") or "", value("MULTIARCH") or "")]
name = value("INSTSONAME") if value("Py_ENABLE_SHARED") else None
found = [folder for folder in folders if name and os.path.exists(os.path.join(folder, name))]
print(json.dumps(["%d.%d" % sys.version_info[:2], found[0] if found else ""]))
"""


class MissingPeerError(Exception):
    """A peer is unavailable or fails; it is left out."""


@dataclass(frozen=True, slots=True)
class TritonFiles:
    """Triton's program, its libraries and its backends.

    The backends hold the stub for one Python.
    """

    program: Path
    libraries: tuple[Path, ...]
    backends: Path
    models_python: Path


class Environments:
    """The environments in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._failures: dict[str, MissingPeerError] = {}

    def models(self) -> Path:
        """Return the Python of the models, with compiled kernels."""
        folder = self._folder / "models"
        packages = (
            *("--constraint", str(_PINS), "--build-constraint", str(_PINS)),
            *("--editable", f"{ROOT}[cpu]", _pin("peers", "torch")),
        )

        def fill() -> None:
            python = _new_environment(folder)
            _pip(python, "--constraint", str(_PINS), "pip")
            _pip(python, *packages)
            _checked(python, "-m", "gradwire_server", "--compile-only")

        self._once("models", packages, fill)
        return folder / "bin" / "python"

    def client(self) -> Path:
        """Return the Python of tritonclient."""
        folder = self._folder / "client"
        packages = (_pin("triton", "tritonclient"),)
        self._once("client", packages, lambda: _pip(_new_environment(folder), *packages))
        return folder / "bin" / "python"

    def triton(self) -> TritonFiles:
        """Return Triton's files."""
        python, version, library = _python()
        folder = self._folder / "triton"
        package = _pin("triton", "nvidia-pytriton")
        unpacked = folder / "wheel"
        files = unpacked / "pytriton" / "tritonserver"
        backend = folder / "backends" / "python"

        def fill() -> None:
            _pip(python, "--no-deps", "--target", str(unpacked), package)
            shutil.copytree(files / "backends" / "python", backend)
            stub = files / "python_backend_stubs" / version / "triton_python_backend_stub"
            shutil.copy(stub, backend)
            (backend / stub.name).chmod(0o755)
            (files / "bin" / "tritonserver").chmod(0o755)

        self._once("triton", (package, version), fill)
        return TritonFiles(
            program=files / "bin" / "tritonserver",
            libraries=(library, unpacked / "nvidia_pytriton.libs"),
            backends=backend.parent,
            models_python=self.models(),
        )

    def _once(self, name: str, wanted: Sequence[str], fill: Callable[[], None]) -> None:
        """Fill an environment unless it holds its requirements.

        A failure is not tried again.
        """
        if name in self._failures:
            raise self._failures[name]
        folder = self._folder / name
        stamp = folder / "contents.json"
        contents = json.dumps(list(wanted))
        if stamp.exists() and stamp.read_text(encoding="utf-8") == contents:
            return
        say(f"set-up: {folder}: {' '.join(wanted)}")
        shutil.rmtree(folder, ignore_errors=True)
        started = time.monotonic()
        try:
            folder.mkdir(parents=True)
            fill()
        except (MissingPeerError, OSError) as error:
            self._failures[name] = MissingPeerError(f"no environment {name!r}: {error}")
            raise self._failures[name] from error
        stamp.write_text(contents, encoding="utf-8")
        say(f"set-up: {name} took {time.monotonic() - started:.0f} s")


def h2load() -> str:
    """Return the path of h2load."""
    if (program := shutil.which("h2load")) is None:
        raise MissingPeerError(
            "no h2load; run: apt-get update && apt-get install -y nghttp2-client"
        )
    return program


def say(text: str) -> None:
    """Write a line on stderr, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _pin(group: str, package: str) -> str:
    """Return the requirement of a package from its dependency group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pins: list[str] = project["dependency-groups"][group]
    return next(pin for pin in pins if pin.startswith(package))


def _python() -> tuple[Path, str, Path]:
    """Return a Python with a shared library and a stub.

    Its version and the library's folder follow.
    """
    base = os.path.realpath(sys.executable)
    for candidate in (base, *(shutil.which(f"python{version}") for version in _STUBS)):
        if candidate is None:
            continue
        done = subprocess.run(
            [candidate, "-c", _LIBRARY], capture_output=True, text=True, check=False
        )
        if done.returncode:
            continue
        version, library = json.loads(done.stdout)
        if version in _STUBS and library:
            return Path(candidate), version, Path(library)
    raise MissingPeerError(
        f"no Python of {', '.join(_STUBS)} with a shared libpython, which Triton's stub loads"
    )


def _new_environment(folder: Path) -> Path:
    try:
        python = _python()[0]
    except MissingPeerError:
        # tritonclient and local rows need no stub.
        python = Path(sys.executable)
    _checked(python, "-m", "venv", str(folder))
    return folder / "bin" / "python"


def _pip(python: Path, *arguments: str) -> None:
    _checked(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _checked(program: Path, *arguments: str) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise MissingPeerError(f"{' '.join(arguments[:3])}: {lines[-1]}")
