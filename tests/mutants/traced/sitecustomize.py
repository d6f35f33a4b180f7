"""Records the lines executed by a process that a test started.

Python imports this at its start, where PYTHONPATH names the folder.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

# Tests kill most servers, which then cannot write at their end.
_EVERY_S = 0.3
_QUIET = ["no-data-collected", "module-not-imported", "module-not-measured"]

test = os.environ.get("MUTANTS_TEST")
if test:
    import coverage

    recorded = coverage.Coverage(
        data_file=Path(os.environ["MUTANTS_DATA"]) / "lines",
        data_suffix=True,
        config_file=False,
        source_pkgs=["gradwire", "gradwire_server"],
        context=test,
        messages=False,
    )
    recorded.set_option("run:disable_warnings", _QUIET)
    recorded.start()

    def save() -> None:
        recorded.stop()
        recorded.save()

    def keep() -> None:
        """Write the lines executed so far, periodically."""
        wait = threading.Event()
        while not wait.wait(_EVERY_S):
            recorded.save()

    atexit.register(save)
    threading.Thread(target=keep, daemon=True).start()
