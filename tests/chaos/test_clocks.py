"""A clock that is set, back or forth, costs no call: what takes time is timed by another one."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.load import Callers
from support.processes import environment, running_command

ROOT = Path(__file__).parents[2]
DAY_S = 86_400
SOURCES = [
    path
    for folder in ("client", "server")
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
]
# Moments that are told, or compared with those of files and the last days of tokens and
# certificates: never what lasts.
MAY_ASK = {
    *("authorization.py", "certificates.py", "cache_files.py", "cells.py"),
    *("cluster.py", "models.py", "otlp.py", "status.py", "token_command.py"),
}
CLOCK = Path(__file__).parents[1] / "clock.c"


def asked(path: Path) -> Iterator[str]:
    """Yield what a module asks for the time of day."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}:
                yield name
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{each.name}" for each in node.names)


def test_nobody_asks_for_the_time_of_day_who_need_not() -> None:
    who = {path.name for path in SOURCES if any(asked(path))}
    assert who == MAY_ASK


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(CLOCK)]
    subprocess.run(command, check=True)  # noqa: S603 - our own source
    return made


def test_a_clock_that_is_set_costs_no_call(clock: Path, tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text("0")
    variables = {"LD_PRELOAD": str(clock), "CLOCK_OFFSET": str(offset)}
    said = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=environment({**variables, "CLOCK_OFFSET": str(_written(tmp_path, DAY_S))}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(said.stdout) > time.time() + DAY_S / 2
    with running_command(
        "--backend", "numpy_cpu", "--workers", "2", log=tmp_path / "log", env=variables
    ) as command:
        with Callers(command.address, "unary", "async unary", "stream", "many") as callers:
            for seconds in (DAY_S, -DAY_S, 400 * DAY_S, 0):
                offset.write_text(str(seconds))
                callers.wait_for_more()
        callers.check()
        assert all(tally.retried == 0 for tally in callers.tallies)
        assert "hangs" not in command.log


def _written(folder: Path, seconds: int) -> Path:
    path = folder / "ahead"
    path.write_text(str(seconds))
    return path
