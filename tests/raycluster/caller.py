"""Programs of the machine that calls; both write JSON to standard output.

    python -m raycluster.caller watch TARGET           its list of replicas, whenever it changed
    python -m raycluster.caller call TARGET KIND ...   what callers saw, when standard input ends

`call` says "calling" once every caller has had results. The kinds are those of callers.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

from gradwire import UnavailableError
from gradwire._transport.replicas import resolve
from support.load import PAUSE_S, Callers

_LOOK_S = 0.2


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def watch(target: str) -> None:
    """Look until this is killed; an empty list stands for none that can be had."""
    told: tuple[str, ...] | None = None
    while True:
        seen: tuple[str, ...] = ()
        with contextlib.suppress(UnavailableError):
            seen = resolve(target)
        if seen != told:
            _say(json.dumps(seen))
            told = seen
        time.sleep(_LOOK_S)


def call(target: str, *kinds: str) -> None:
    with Callers(target, *kinds, pause_s=PAUSE_S) as callers:
        callers.wait_for_more()
        _say("calling")
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
    _say(json.dumps(seen))


if __name__ == "__main__":
    {"watch": watch, "call": call}[sys.argv[1]](*sys.argv[2:])
