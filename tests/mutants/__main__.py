"""Runs the recorded mutants and compares the outcomes with the table.

    PYTHONPATH=tests python -m mutants               run all mutants on the current code
    PYTHONPATH=tests python -m mutants run 7 12      run some
    PYTHONPATH=tests python -m mutants run --record  write the outcomes to the table

The exit status is 1 if a mutant recorded as caught escapes, is not run in time, or does not apply
any more: its behavior then has to be expressed again in the current code.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from mutants import table
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", nargs="?", choices=("run",), default="run")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    if not run({*arguments.numbers}, record=arguments.record):
        sys.exit(1)


def run(numbers: set[int], *, record: bool) -> bool:
    """Run mutants, by default all, and print the outcomes; return whether they hold."""
    until = time.monotonic() + _LIMIT_S
    mutants = [each for each in table.read(TABLE) if not numbers or each.number in numbers]
    tried = [each for each in mutants if each.outcome != "equivalent" and _applies(each)]
    copies = [Copy(ROOT, _FOLDER / str(number)) for number in range(min(_COPIES, len(tried) or 1))]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as file:
        # Other runs use the same copies.
        fcntl.flock(file, fcntl.LOCK_EX)
        found = judge_all(tried, copies, _tell, until=until)
    if record:
        judged = [_recorded(each, found) for each in table.read(TABLE)]
        TABLE.write_text(table.text(judged), encoding="utf-8")
    words: dict[int, str] = {
        each.number: "equivalent" if each.outcome == "equivalent" else "not run" for each in mutants
    }
    words |= {number: "caught" if test else "escaped" for number, test in found.items()}
    for each in mutants:
        sys.stdout.write(
            f"{each.number:4}  {words[each.number]:10}  {each.area:19}  {each.behavior}\n"
        )
    counts = sorted(Counter(words.values()).items())
    sys.stdout.write(", ".join(f"{count} {word}" for word, count in counts) + "\n")
    return all(found.get(each.number) for each in mutants if each.outcome == "caught")


def _applies(mutant: Mutant) -> bool:
    """Tell why a mutant cannot be applied to the code as it is now, if it cannot."""
    try:
        mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    except (FileNotFoundError, LookupError) as error:
        sys.stderr.write(f"{mutant.number}: {error}; it is: {mutant.behavior}\n")
        return False
    return True


def _recorded(mutant: Mutant, found: dict[int, str | None]) -> Mutant:
    """Return a mutant with its outcome, the test that caught it first among its tests."""
    if mutant.number not in found:
        return mutant
    test = found[mutant.number]
    if test is None:
        return replace(mutant, outcome="escaped")
    others = tuple(each for each in mutant.tests if each != test)
    return replace(mutant, outcome="caught", tests=(test, *others)[:_KEPT])


def _tell(mutant: Mutant, test: str | None, seconds: float) -> None:
    word = "escaped" if test is None else "caught"
    sys.stderr.write(f"{mutant.number:4}  {word}  {seconds:5.1f} s  {test or ''}\n")


if __name__ == "__main__":
    main()
