"""Triton's server with the models of triton_model, as a process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.environments import ROOT, MissingPeerError, TritonFiles
from benchmarks.peers.processes import tree
from benchmarks.servers import Server

MODELS: Final = ("kernel", "torch", "noop")
_CONFIGURATION: Final = """\
name: "{name}"
backend: "python"
max_batch_size: 0
input [ {{ name: "GRADIENT" data_type: TYPE_FP32 dims: [ -1, -1, -1, -1 ] }} ]
output [ {{ name: "RESULT" data_type: TYPE_FP32 dims: [ -1, -1, -1, -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
# Both tensors of a large call; the default of 1 MiB would grow during the first calls.
_SHARED_BYTES: Final = 64 << 20
_READY_S: Final = 180
_EXIT_S: Final = 3


@contextmanager
def started(triton: TritonFiles, client: Path) -> Generator[Server]:
    """Run Triton until the block ends.

    Yields once every model is ready.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-triton-") as name:
        folder = Path(name)
        _write_models(folder / "models")
        address = f"127.0.0.1:{_free_port()}"
        log = folder / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                _command(triton, folder, address),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(triton),
                start_new_session=True,  # Ctrl-C reaches only this process, which ends Triton
            ) as process,
        ):
            try:
                _wait_ready(process, client, address, log)
                yield Server(address, process.pid)
            finally:
                _stop(process)
                # Shared memory of a stub that was killed.
                for region in Path("/dev/shm").glob(f"{folder.name}*"):  # noqa: S108 - POSIX shared memory
                    region.unlink()


def _write_models(folder: Path) -> None:
    for name in MODELS:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(_CONFIGURATION.format(name=name))
        shutil.copy(Path(__file__).parent / "triton_model.py", folder / name / "1" / "model.py")


def _command(triton: TritonFiles, folder: Path, address: str) -> list[str]:
    host, _, port = address.rpartition(":")
    return [
        *(str(triton.program), f"--model-repository={folder / 'models'}"),
        *(f"--backend-directory={triton.backends}", f"--exit-timeout-secs={_EXIT_S}"),
        *(f"--grpc-address={host}", f"--grpc-port={port}"),
        *("--allow-http=false", "--allow-metrics=false"),
        f"--backend-config=python,shm-default-byte-size={_SHARED_BYTES}",
        f"--backend-config=python,stub-timeout-seconds={_READY_S}",
        f"--backend-config=python,shm-region-prefix-name={folder.name}",
    ]


def _environment(triton: TritonFiles) -> dict[str, str]:
    """Return the stub's environment variables.

    It finds its libpython and the models' packages by them.
    """
    path = f"{triton.models_python.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "LD_LIBRARY_PATH": ":".join(map(str, triton.libraries))}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_ready(process: subprocess.Popen[bytes], client: Path, address: str, log: Path) -> None:
    until = time.monotonic() + _READY_S
    command = [str(client), "-m", "benchmarks.peers.triton_client", "ready", address]
    while time.monotonic() < until and process.poll() is None:
        if not subprocess.run(command, capture_output=True, check=False, cwd=ROOT).returncode:
            return
        time.sleep(0.5)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise MissingPeerError(f"Triton did not get ready: {' '.join(last)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End Triton, and then each remaining process of its tree."""
    pids = tree(process.pid)
    process.terminate()
    try:
        process.wait(timeout=3 * _EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    for pid in pids[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
