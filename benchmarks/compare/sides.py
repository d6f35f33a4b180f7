"""The two sides of a comparison: trees, virtual environments, servers and runners."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.servers import OURS, Server, started

_BUILD = ROOT / "build" / "compare"
_RUNNER = Path(__file__).with_name("runner.py")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORES, CLIENT_CORES = CORES[:1], CORES[1:] or CORES
# PYTHONPATH is emptied, so that each side finds its own packages.
_ENVIRONMENT = {"PYTHONPATH": ""}
BASELINE = (ROOT / "benchmarks" / "BASELINE").read_text(encoding="ascii").strip()


@dataclass(frozen=True, slots=True)
class Side:
    """A tree, installed in a virtual environment of its own."""

    name: str
    tree: Path
    python: str

    def serving(
        self, *flags: str, cores: Sequence[int] = SERVER_CORES
    ) -> AbstractContextManager[Server]:
        """Return a context in which a server of this side runs."""
        return started(
            *OURS, *flags, env=_ENVIRONMENT, python=self.python, cores=cores, cwd=self.tree
        )

    @contextmanager
    def runner(self) -> Generator[Runner]:
        """Run the runner on the clients' cores until the block ends."""
        with subprocess.Popen(
            [self.python, "-P", str(_RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **_ENVIRONMENT},
            cwd=self.tree,
        ) as process:
            yield Runner(process)
            process.terminate()


class Runner:
    """A process of one side that makes calls on order."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, do: str, **values: object) -> dict[str, float]:
        """Give an order, and return its figures."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the runner ended at {do!r}, see its error above")
        found: dict[str, float] = json.loads(answer)
        return found


def sides(against: str) -> tuple[Side, Side]:
    """Install this tree and a commit beside each other.

    Existing installations are kept.
    """
    commit = _git("rev-parse", "--verify", f"{against}^{{commit}}")
    tree = _BUILD / commit / "tree"
    if not tree.exists():
        partial = tree.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        archive = subprocess.run(
            ["/usr/bin/env", "git", "-C", str(ROOT), "archive", commit],
            check=True,
            stdout=subprocess.PIPE,
        )
        subprocess.run(
            ["/usr/bin/env", "tar", "-x", "-C", str(partial)], input=archive.stdout, check=True
        )
        partial.rename(tree)
    return _installed("this tree", ROOT, _BUILD / "this"), _installed(
        commit[:10], tree, _BUILD / commit
    )


def _installed(name: str, tree: Path, folder: Path) -> Side:
    """Install a tree with the extra `cpu`, and compile its kernels.

    The installation is editable, in an environment of its own.
    """
    venv, stamp = folder / "venv", folder / "installed"
    python = str(venv / "bin" / "python")
    pins = tree / "constraints" / "pinned.txt"
    wanted = hashlib.sha256((tree / "pyproject.toml").read_bytes() + pins.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="ascii") != wanted:
        print(f"installing {name} in {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        pinned = ["--constraint", str(pins), "--build-constraint", str(pins)]
        subprocess.run([*pip, *pinned[:2], "pip"], check=True)
        subprocess.run([*pip, *pinned, "--editable", f"{tree}[cpu]"], check=True)
        stamp.write_text(wanted, encoding="ascii")
    subprocess.run(
        [python, "-m", "gradwire_server", "--compile-only"],
        check=True,
        env={**os.environ, **_ENVIRONMENT},
        cwd=tree,
    )
    return Side(name, tree, python)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["/usr/bin/env", "git", "-C", str(ROOT), *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()
