"""Runs a module that ends with the holder of its input.

The holder is the process that has the other end of standard input.

    python -m gradwire.cli.tethered MODULE ARGUMENT ...

A parent that dies, however it dies, closes its end of the pipe; the program then gets SIGTERM, as
from a service manager. This works on every system and needs no cooperation of the module.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

# Seconds until a program that does not end by itself, such as one with calls in flight, is made to
# exit.
GRACE_S = 10.0


def main() -> None:
    """Run the module named by the first argument with the others."""
    del sys.argv[0]
    threading.Thread(target=_follow_standard_input, daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _follow_standard_input() -> None:
    # os.read holds no lock of a file object, which would upset the interpreter's exit.
    while os.read(0, 4096):
        pass
    timer = threading.Timer(GRACE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
