"""Runs the recorded mutants; ends with 1 if one that tests caught escapes now.

    PYTHONPATH=tests python -m mutants           run all mutants on the current code
    PYTHONPATH=tests python -m mutants run 7 12  run some

A mutant that is not run in time, or does not apply any more, has escaped, too: its behavior then
has to be expressed again in the current code.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from pathlib import Path

from mutants.running import Copy, judge_all, read

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mutants.toml")

_FOLDER = ROOT / "build" / "mutants"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", nargs="?", choices=("run",), default="run")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    numbers = parser.parse_args().numbers
    until = time.monotonic() + 3600.0
    caught = [each for each in read(TABLE) if each.outcome == "caught"]
    wanted = [each for each in caught if not numbers or each.number in numbers]
    # Two at once: tests wait for servers half of their time.
    copies = [Copy(ROOT, _FOLDER / str(number)) for number in range(min(2, len(wanted) or 1))]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as file:
        # Other runs use the same copies.
        fcntl.flock(file, fcntl.LOCK_EX)
        found = judge_all(wanted, copies, until=until)
    escaped = [each for each in wanted if each.number not in found]
    for each in escaped:
        sys.stdout.write(f"{each.number:4}  {each.area:19}  {each.behavior}\n")
    sys.stdout.write(f"{len(found)} caught, {len(escaped)} not\n")
    sys.exit(bool(escaped))


if __name__ == "__main__":
    main()
