"""Calls a target until its standard input ends, then prints what callers saw as JSON.

    python -m raycluster.calling TARGET KIND ...

It says "calling" once every caller has had results. The kinds are those of callers.py.
"""

from __future__ import annotations

import json
import sys

from support.load import Callers


def main() -> None:
    target, *kinds = sys.argv[1:]
    with Callers(target, *kinds) as callers:
        callers.wait_for_more()
        sys.stdout.write("calling\n")
        sys.stdout.flush()
        sys.stdin.read()
        callers.wait_for_more()
    tallies = callers.tallies
    seen = {
        "calls": sum(tally.calls for tally in tallies),
        "retried": sum(tally.retried for tally in tallies),
        "slowest_s": round(max(tally.slowest_s for tally in tallies), 3),
        "wrong": sum(tally.wrong for tally in tallies),
        "lost": [text for tally in tallies for text in tally.lost],
    }
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
