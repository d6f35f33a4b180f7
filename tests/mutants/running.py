"""The recorded mutants, and how their tests are run in copies of the repository.

A place is a function and some of its lines as text, so that it is found again after the function
has moved within its file. A mutant whose text is gone has to be expressed again from its behavior.
A mutant is caught if one of its tests fails, exceeds the limit of a single test, or its process
dies with the mutant, and the same test then passes in the same copy without it. A mutant whose
tests merely exceed their common limit is not caught. A test that has moved is run where it is now,
and where it is gone, all of its module.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import IO

import pytest

# Limits of all tests of a mutant together, and of a single test, which takes much less unmutated.
_LIMIT_S, _TEST_LIMIT_S = 60.0, 25.0

_PYTEST = ("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
# A fixed seed: otherwise hypothesis tries other examples in each run.
_PLUGINS = ("-p", "mutants.running", "--hypothesis-seed=0", "--tb=short")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    behavior  the wrong one, in words, which remain valid when the code changes
    function  qualified name: "Class.method"
    before    whole lines that occur once in the function, at any indentation
    after     the lines that replace them
    outcome   "caught" if a test fails, "equivalent" if none can
    reason    why it is equivalent
    tests     tests that execute the lines, in the order in which they are tried
    """

    number: int
    area: str
    behavior: str
    file: str
    function: str
    before: str
    after: str
    outcome: str
    reason: str = ""
    tests: tuple[str, ...] = ()

    def applied(self, source: str) -> str:
        """Return a source with the fault. Raises LookupError if its lines are gone."""
        lines = source.splitlines(keepends=True)
        wanted = self.before.splitlines(keepends=True)
        count = len(wanted)
        places = [
            first
            for name, node in _functions(ast.parse(source))
            if name == self.function
            for first in range(node.lineno - 1, (node.end_lineno or 0) - count + 1)
            if dedent("".join(lines[first : first + count])) == dedent(self.before)
        ]
        if len(places) != 1:
            raise LookupError(
                f"mutant {self.number}: its lines are {len(places)} times in {self.function} of "
                f"{self.file}; express again: {self.behavior}"
            )
        (first,) = places
        further = " " * (len(lines[first]) - len(wanted[0]))
        lines[first : first + count] = [indent(self.after, further)]
        return "".join(lines)


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its qualified name, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        inside = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{prefix}{node.name}."
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        yield from _functions(node, inside)


def read(path: Path) -> list[Mutant]:
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


class Copy:
    """A copy of the repository, reused by later runs with its cache of compiled kernels."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self.folder = root, folder
        names = ("progress", "log", "args")
        self._progress, self._log, self._arguments = (Path(f"{folder}-{name}") for name in names)
        self._homes = defaultdict[str, list[str]](list)

    def refresh(self) -> None:
        """Copy the tracked and the new files of the repository."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.check_output(command, cwd=self._root, text=True)  # noqa: S603 - git
        names = {name for name in listed.split("\0") if name and (self._root / name).is_file()}
        for name in names:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._root / name, target)  # with its time, on which caches rely
        for file in self.folder.rglob("*.py"):
            name = str(file.relative_to(self.folder))
            if name not in names:
                file.unlink()
            elif file.name.startswith("test_"):
                text = file.read_text(encoding="utf-8")
                for function in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE):
                    self._homes[function].append(name)

    def warm(self) -> None:
        """Compile the kernels if numba is installed: no mutant changes them."""
        with self._log.open("wb") as log:
            words = ("-m", "gradwire_server", "--compile-only", "--backend", "numba_cpu")
            self._start(words, log).wait()

    def judge(self, mutant: Mutant) -> str | None:
        """Return the test that catches a mutant; None if none does. Raises LookupError."""
        tests = [one for test in mutant.tests for one in self._located(test)]
        until = time.monotonic() + _LIMIT_S
        while tests:
            with self._mutated(mutant):
                self._run(tests, until=until)
            suspect = self._progress.read_text(encoding="utf-8")
            log = self._log.read_text(encoding="utf-8", errors="replace")
            # Where a case is missing, pytest runs none at all: then all cases of its function.
            whole = [test.partition("[")[0] for test in tests]
            there = [
                all_cases if f"not found: {self.folder}/{all_cases}" in log else test
                for test, all_cases in zip(tests, whole, strict=True)
            ]
            if there != tests:
                tests = there
            elif not suspect or time.monotonic() >= until:
                return None
            # A failure counts only if the test passes without the mutant.
            elif self._run([suspect], until=time.monotonic() + _LIMIT_S) == 0:
                return suspect
            else:
                tests = tests[tests.index(suspect) + 1 :] if suspect in tests else []
        return None

    def _located(self, test: str) -> list[str]:
        """Return where a test is now: in its module, in others, or its module if it is gone."""
        path, _, name = test.partition("::")
        function = name.partition("[")[0]
        homes = self._homes[function]
        if path in homes:
            return [test]
        return [f"{home}::{function}" for home in homes] or [path] * (self.folder / path).is_file()

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Generator[None]:
        file = self.folder / mutant.file
        source, stat = file.read_text(encoding="utf-8"), file.stat()
        file.write_text(mutant.applied(source), encoding="utf-8")
        # Bytecode is valid by time in seconds and size, which two mutants may share.
        os.utime(file, (stat.st_atime, stat.st_mtime + 1000 + mutant.number))
        try:
            yield
        finally:
            file.write_text(source, encoding="utf-8")
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _run(self, tests: Sequence[str], *, until: float) -> int:
        """Run tests until they end or exceed a limit; return the exit status."""
        self._arguments.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
        self._progress.write_text("", encoding="utf-8")
        with self._log.open("wb") as log:
            temporary = f"--basetemp={self.folder}-tmp"
            process = self._start((*_PYTEST, *_PLUGINS, temporary, f"@{self._arguments}"), log)
            try:
                seen, since = 0, (now := time.monotonic())
                while process.poll() is None and time.monotonic() < min(
                    until, since + _TEST_LIMIT_S
                ):
                    changed = self._progress.stat().st_mtime_ns
                    if changed != seen:
                        seen, since = changed, now
                    time.sleep(0.05)
                    now = time.monotonic()
            finally:
                # Includes servers that tests left behind.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode

    def _start(self, words: Iterable[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        folders = (str(self.folder / name) for name in ("server", "client", "tests"))
        variables = {
            _FILE: str(self._progress),
            "PYTHONPATH": os.pathsep.join(folders),
            "PYTHONHASHSEED": "0",
            "HYPOTHESIS_PROFILE": "thorough",
            "XDG_CACHE_HOME": f"{self.folder}-cache",
        }
        return subprocess.Popen(  # noqa: S603 - our own tests and server
            [sys.executable, *words],
            cwd=self.folder,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


# The processes that run tests have this module as a plugin, which keeps in a file the test that
# runs, and then the one that failed.
_FILE = "MUTANTS_PROGRESS"
_failed: list[str] = []


def _keep(test: str) -> None:
    Path(os.environ[_FILE]).write_text(_failed[0] if _failed else test, encoding="utf-8")


def pytest_runtest_logstart(nodeid: str) -> None:
    _keep(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)
        _keep(report.nodeid)


def pytest_runtest_logfinish() -> None:
    _keep("")


pytest_collectreport = pytest_runtest_logreport


def judge_all(mutants: Sequence[Mutant], copies: Sequence[Copy], *, until: float) -> dict[int, str]:
    """Return the test that catches each mutant, by number; those that escape are left out."""
    waiting = list(reversed(mutants))
    found: dict[int, str] = {}

    def work(copy: Copy) -> None:
        copy.refresh()
        copy.warm()
        while waiting and time.monotonic() < until:
            mutant = waiting.pop()
            try:
                told = test = copy.judge(mutant)
            except (FileNotFoundError, LookupError) as error:
                told, test = str(error), None
            if test:
                found[mutant.number] = test
            sys.stderr.write(f"{mutant.number:4}  {told or 'escaped'}\n")

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(work, copies))
    return found
