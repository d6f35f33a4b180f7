"""gradwire-server on simulated GPUs whose supervisor kills its first worker in vain.

So it is where a driver holds a process: SIGKILL waits until the driver lets go of it.
"""

from __future__ import annotations

import os
import signal

from gradwire_server import __main__ as server
from gradwire_server import backends
from gradwire_server.processes import supervised

_kill = os.kill
_spared = set[int]()


def _kill_in_vain(pid: int, number: int) -> None:
    """Send a signal, but no SIGKILL to the process that got the first one."""
    if number == signal.SIGKILL and (not _spared or pid in _spared):
        _spared.add(pid)
        return
    _kill(pid, number)


if __name__ == "__main__":
    os.kill = _kill_in_vain
    # After which a process that SIGKILL has not ended counts as held.
    supervised.__dict__["_KILL_S"] = 1.0
    backends.DEVICES = "support.kernels.simulated_device"
    server.main()
