"""Runs the tests of mutants in copies of the repository.

A mutant is caught if one of its tests fails, exceeds the limit of a single test, or its process
dies with the mutant, and the same test then passes in the same copy without it. A mutant whose
tests merely exceed their common limit is not caught. A test that has moved is run where it is now,
and where it is gone, all of its module.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mutants.progress import FILE
from mutants.table import Mutant

# Limits of all tests of a mutant together, and of a single test, which takes much less unmutated.
LIMIT_S = 60.0
TEST_LIMIT_S = 25.0

_PYTEST = ("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
# A fixed seed: otherwise hypothesis tries other examples in each run.
_PLUGINS = ("-p", "mutants.progress", "--hypothesis-seed=0", "--tb=short")


class Finding(NamedTuple):
    """The result of a run of tests.

    suspect  the test that failed, hung or died; None where there was none
    in_time  whether the tests ended within their common limit
    missing  tests that no longer exist; pytest then runs none at all
    """

    suspect: str | None
    in_time: bool = True
    missing: frozenset[str] = frozenset()


class Copy:
    """A copy of the repository in which mutants are run one after another.

    It is reused by later runs, together with its cache of compiled kernels.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self.folder = folder
        self._home = folder.with_name(f"{folder.name}-cache")
        self._progress = folder.with_name(f"{folder.name}-progress")
        self._homes: dict[str, list[str]] = {}

    def refresh(self) -> None:
        """Copy the tracked and the new files of the repository that have changed."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
            cwd=self._root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        names = {name for name in listed.split("\0") if name and (self._root / name).is_file()}
        for name in names:
            _copy(self._root / name, self.folder / name)
        self._homes = defaultdict(list)
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
        words = ("-m", "gradwire_server", "--compile-only", "--backend", "numba_cpu")
        subprocess.run(  # noqa: S603 - our own server
            [sys.executable, *words],
            cwd=self.folder,
            env=self._environment(),
            check=False,
            stdout=subprocess.DEVNULL,
        )

    def judge(self, mutant: Mutant) -> str | None:
        """Return the test that catches a mutant; None if none does. Raises LookupError."""
        tests = list(dict.fromkeys(chain.from_iterable(map(self._located, mutant.tests))))
        until = time.monotonic() + LIMIT_S
        while tests:
            with self._mutated(mutant):
                found = self._tests(tests, until=until)
            if found.missing:
                others = (_without_case(test, found.missing) for test in tests)
                tests = list(dict.fromkeys(chain.from_iterable(others)))
            elif found.suspect is None:
                return None
            # A failure counts only if the test passes without the mutant.
            elif self._passes(found.suspect):
                return found.suspect
            else:
                behind = tests.index(found.suspect) + 1 if found.suspect in tests else len(tests)
                tests = tests[behind:]
        return None

    def _located(self, test: str) -> list[str]:
        """Return where a test is now: in its module, in others, or its module if it is gone."""
        path, _, name = test.partition("::")
        function = name.partition("[")[0]
        homes = self._homes.get(function, [])
        if path in homes:
            return [test]
        return [f"{home}::{function}" for home in homes] or [path] * (self.folder / path).is_file()

    def _passes(self, test: str) -> bool:
        return self._tests([test], until=time.monotonic() + LIMIT_S) == Finding(None)

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

    def _tests(self, tests: Sequence[str], *, until: float) -> Finding:
        arguments = self._progress.with_suffix(".args")
        arguments.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
        self._progress.write_text("", encoding="utf-8")
        with self._progress.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own tests
                [sys.executable, *_PYTEST, *_PLUGINS, f"@{arguments}"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(process, until)
            finally:
                # Includes servers that tests left behind.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return self._finding(late=time.monotonic() >= until)

    def _wait(self, process: subprocess.Popen[bytes], until: float) -> None:
        """Wait until the tests end, or exceed a limit."""
        seen, since = -1, time.monotonic()
        while process.poll() is None:
            size = self._progress.stat().st_size
            now = time.monotonic()
            if size != seen:
                seen, since = size, now
            if now >= until or now - since >= TEST_LIMIT_S:
                return
            time.sleep(0.05)

    def _finding(self, *, late: bool) -> Finding:
        log = self._progress.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
        if missing := re.findall(
            rf"^ERROR: not found: {re.escape(str(self.folder))}/(.*)$", log, re.MULTILINE
        ):
            return Finding(None, missing=frozenset(missing))
        running: str | None = None
        done = False
        for line in self._progress.read_text(encoding="utf-8").splitlines():
            word, _, test = line.partition("\t")
            if word == "failed":
                return Finding(test)
            running = test if word == "begun" else None if word == "ended" else running
            done = done or word == "done"
        if running is None or late:
            return Finding(None, in_time=done)
        return Finding(running)

    def _environment(self) -> dict[str, str]:
        folders = (self.folder / name for name in ("server", "client", "tests"))
        return {
            **os.environ,
            FILE: str(self._progress),
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "PYTHONHASHSEED": "0",
            "XDG_CACHE_HOME": str(self._home),
        }


def _without_case(test: str, missing: frozenset[str]) -> list[str]:
    """Return a test as it is, or where its case is missing, all cases of its function."""
    function, bracket, _ = test.partition("[")
    if not missing & {test, function}:
        return [test]
    return [function] if bracket else []


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its modification time, on which caches rely, unless it is unchanged."""
    before = source.stat()
    if target.exists():
        after = target.stat()
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def judge_all(
    mutants: Sequence[Mutant],
    copies: Sequence[Copy],
    tell: Callable[[Mutant, str | None, float], None],
    *,
    until: float,
) -> dict[int, str | None]:
    """Return the test that catches each mutant, by number; mutants not run are left out."""
    waiting = list(reversed(mutants))
    found: dict[int, str | None] = {}

    def work(copy: Copy) -> None:
        copy.refresh()
        copy.warm()
        while waiting and time.monotonic() < until:
            mutant = waiting.pop()
            start = time.monotonic()
            found[mutant.number] = copy.judge(mutant)
            tell(mutant, found[mutant.number], time.monotonic() - start)

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(work, copies))
    return found
