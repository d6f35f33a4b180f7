"""Prints a target's list of replicas as JSON, a line whenever it has changed.

python -m raycluster.watching TARGET
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

from gradwire import UnavailableError
from gradwire._transport.replicas import resolve

_LOOK_S = 0.2


def main() -> None:
    """Look until this is killed; an empty list stands for none that can be had."""
    told: tuple[str, ...] | None = None
    while True:
        seen: tuple[str, ...] = ()
        with contextlib.suppress(UnavailableError):
            seen = resolve(sys.argv[1])
        if seen != told:
            sys.stdout.write(json.dumps(seen) + "\n")
            sys.stdout.flush()
            told = seen
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
