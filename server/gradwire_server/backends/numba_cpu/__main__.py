"""Child process that compiles kernels into a cache at low priority.

python -m gradwire_server.backends.numba_cpu PARENT FOLDER
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from gradwire_server.backends.numba_cpu import compilation

# prctl(2): the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
# A tenth of the server's share of a busy core. With 19 it would be a seventieth, and a server under
# load would wait for its faster kernels for half an hour.
_NICENESS = 10


def main() -> None:
    """Compile at most as long as the parent lives."""
    parent, folder = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the server has ended")
    os.nice(_NICENESS)
    compilation.load(folder)
    if not compilation.is_stored(folder):
        sys.exit("the kernels cannot be cached")


if __name__ == "__main__":
    main()
