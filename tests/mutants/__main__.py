"""Runs the recorded mutants and compares the outcomes with the table.

    PYTHONPATH=tests python -m mutants               run all mutants on the current code
    PYTHONPATH=tests python -m mutants run 7 12      run some
    PYTHONPATH=tests python -m mutants run --record  write the outcomes to the table
    PYTHONPATH=tests python -m mutants select        select tests anew; takes 20 minutes
    PYTHONPATH=tests python -m mutants draw          draw mutants from the files of the table

The exit status is 1 if a mutant recorded as caught escapes, is not run in time, or does not apply
any more: its behavior then has to be expressed again in the current code. Tests that have moved are
skipped until they are selected anew.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mutants import contexts, drawing, selection, table
from mutants.running import Copy, judge_all
from mutants.table import Mutant

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "mutants.toml"

_FOLDER = ROOT / "build" / "mutants"
# Workers: tests wait for servers half of their time.
_COPIES = 2
# Tests recorded for a caught mutant: the one that failed, and others in case that one is removed.
_KEPT = 8
# Time limit of the whole run.
_LIMIT_S = 3600.0
# Tests that exercise the areas. Tests of machine code and of devices take long and do not.
_SUITES = (
    "backends",
    "chaos",
    "contract",
    "dialects",
    "engine",
    "fuzz",
    "plans",
    "sdk",
    "server",
    "telemetry/test_endpoint.py",
)
_LEFT_OUT = (
    "backends/test_compilation.py",
    "backends/test_cuda.py",
    "backends/test_cuda_overlap.py",
    "backends/test_cuda_together.py",
    "backends/test_numba_memory.py",
    "backends/test_numba_processors.py",
    "backends/test_numba_team.py",
    "backends/test_numba_threads.py",
    "contract/test_node_client.py",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", nargs="?", choices=("run", "select", "draw"), default="run")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    mutants = table.read(TABLE)
    if arguments.verb == "draw":
        areas: dict[str, set[str]] = defaultdict(set)
        for each in mutants:
            if (ROOT / each.file).is_file():
                areas[each.area].add(each.file)
        sys.stdout.write(table.text(drawing.draw(ROOT, areas)))
        return
    if arguments.verb == "select":
        _write(select(mutants))
        return
    if not run(mutants, set(arguments.numbers), record=arguments.record):
        sys.exit(1)


def run(mutants: Sequence[Mutant], numbers: set[int], *, record: bool) -> bool:
    """Run mutants, by default all, and print the outcomes; return whether they hold."""
    start = time.monotonic()
    mutants = [each for each in mutants if not numbers or each.number in numbers]
    lost = {each.number: message for each in mutants if (message := _why_lost(each)) is not None}
    sys.stderr.write("".join(f"{message}\n" for message in lost.values()))
    tried = [each for each in mutants if each.outcome != "equivalent" and each.number not in lost]
    count = max(1, min(_COPIES, len(tried)))
    copies = [Copy(ROOT, _FOLDER / str(number)) for number in range(count)]
    with _alone():
        found = judge_all(tried, copies, _tell, until=start + _LIMIT_S)
    if record:
        _write([_recorded(each, found) for each in table.read(TABLE)])
    sys.stdout.write(outcomes(mutants, found))
    sys.stderr.write(f"after {time.monotonic() - start:.0f} s\n")
    return all(found.get(each.number) for each in mutants if each.outcome == "caught")


@contextmanager
def _alone() -> Generator[None]:
    """Wait for other runs that use the same copies."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def outcomes(mutants: Sequence[Mutant], found: Mapping[int, str | None]) -> str:
    """Return the outcomes, one line per mutant, and the count of each outcome."""
    lines: list[str] = []
    counts: Counter[str] = Counter()
    for each in mutants:
        word = _outcome(each, found)
        counts[word] += 1
        lines.append(f"{each.number:4}  {word:10}  {each.area:19}  {each.behavior}\n")
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return "".join(lines) + f"{told}\n"


def _outcome(mutant: Mutant, found: Mapping[int, str | None]) -> str:
    if mutant.outcome == "equivalent":
        return "equivalent"
    if mutant.number not in found:
        return "not run"
    return "caught" if found[mutant.number] else "escaped"


def _recorded(mutant: Mutant, found: Mapping[int, str | None]) -> Mutant:
    """Return a mutant with its outcome, the test that caught it first among its tests."""
    if mutant.outcome == "equivalent" or mutant.number not in found:
        return mutant
    test = found[mutant.number]
    if test is None:
        return replace(mutant, outcome="escaped")
    others = tuple(each for each in mutant.tests if each != test)
    return replace(mutant, outcome="caught", tests=(test, *others)[:_KEPT])


def _why_lost(mutant: Mutant) -> str | None:
    """Return why a mutant cannot be applied to the code as it is now; None if it can."""
    if mutant.outcome == "equivalent":
        return None
    try:
        mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"mutant {mutant.number}: no {mutant.file}; express again: {mutant.behavior}"
    except LookupError as error:
        return str(error)
    return None


def _tell(mutant: Mutant, test: str | None, seconds: float) -> None:
    word = "escaped" if test is None else "caught"
    sys.stderr.write(f"{mutant.number:4}  {word}  {seconds:5.1f} s  {test or ''}\n")


def select(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Record the lines that tests execute, and return the mutants with tests selected by them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _record(folder)
        return selected(mutants, selection.Recorded(folder))


def selected(mutants: Sequence[Mutant], recorded: selection.Recorded) -> list[Mutant]:
    """Return mutants with their tests: a test that has caught one stays the first."""
    result: list[Mutant] = []
    for each in mutants:
        file = ROOT / each.file
        lines = each.lines(file.read_text(encoding="utf-8"))
        tests = selection.chosen(recorded.tests(file, lines), recorded.seconds, recorded.lines)
        if each.outcome == "caught":
            first = [test for test in each.tests[:1] if test in recorded.seconds]
            tests = tuple(dict.fromkeys((*first, *tests)))[:_KEPT]
        result.append(replace(each, tests=tests))
    return result


def _record(folder: Path) -> None:
    paths = [ROOT / name for name in ("server", "client", "tests")]
    left_out = [f"--ignore={ROOT / 'tests' / name}" for name in _LEFT_OUT]
    subprocess.run(  # noqa: S603 - our own tests
        [
            *(sys.executable, "-m", "pytest", "-p", "mutants.contexts", "-p", "no:cacheprovider"),
            *("--numprocesses", "3", "--dist", "worksteal", "-m", "not slow"),
            *left_out,
            *(str(ROOT / "tests" / name) for name in _SUITES),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            contexts.FOLDER: str(folder),
            "PYTHONPATH": os.pathsep.join(map(str, (*paths, contexts.TRACED))),
        },
        check=False,
    )


def _write(mutants: Sequence[Mutant]) -> None:
    TABLE.write_text(table.text(mutants), encoding="utf-8")


if __name__ == "__main__":
    main()
