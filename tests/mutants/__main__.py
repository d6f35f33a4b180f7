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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mutants import table
from mutants.running import Copy, judge_all
from mutants.table import Mutant

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mutants.toml")

_FOLDER = ROOT / "build" / "mutants"
# Tests wait for servers half of their time.
_COPIES = 2
# Time limit of the whole run.
_LIMIT_S = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", nargs="?", choices=("run",), default="run")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    until = time.monotonic() + _LIMIT_S
    every = table.read(TABLE)
    wanted = [each for each in every if not given.numbers or each.number in given.numbers]
    tried = [each for each in wanted if each.outcome != "equivalent" and _applies(each)]
    copies = [Copy(ROOT, _FOLDER / str(number)) for number in range(min(_COPIES, len(tried) or 1))]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as file:
        # Other runs use the same copies.
        fcntl.flock(file, fcntl.LOCK_EX)
        found = judge_all(tried, copies, until=until)
    if given.record:
        TABLE.write_text(table.text(_judged(each, found) for each in every), encoding="utf-8")
    counts = Counter[str]()
    for each in wanted:
        word = {None: "escaped", "": "not run"}.get(found.get(each.number, ""), "caught")
        word = "equivalent" if each.outcome == "equivalent" else word
        counts[word] += 1
        sys.stdout.write(f"{each.number:4}  {word:10}  {each.area:19}  {each.behavior}\n")
    sys.stdout.write(", ".join(f"{n} {word}" for word, n in sorted(counts.items())) + "\n")
    sys.exit(not all(found.get(each.number) for each in wanted if each.outcome == "caught"))


def _applies(mutant: Mutant) -> bool:
    """Tell why a mutant cannot be applied to the code as it is now, if it cannot."""
    try:
        mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    except (FileNotFoundError, LookupError) as error:
        sys.stderr.write(f"{mutant.number}: {error}; it is: {mutant.behavior}\n")
        return False
    return True


def _judged(mutant: Mutant, found: Mapping[int, str | None]) -> Mutant:
    """Return a mutant with its outcome, the test that caught it first among its tests."""
    test = found.get(mutant.number, "")
    if not test:
        return mutant if test == "" else replace(mutant, outcome="escaped")
    others = (each for each in mutant.tests if each != test)
    # Some in case that the first one is removed.
    return replace(mutant, outcome="caught", tests=(test, *others)[:8])


if __name__ == "__main__":
    main()
