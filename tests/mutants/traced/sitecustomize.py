"""Records the lines that a process executes which a test has started.

Python imports this at its start, where PYTHONPATH names the folder.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

# Tests kill most servers, so that none of them could write at its end what it has executed.
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
        """Write what was executed, at the end."""
        recorded.stop()
        recorded.save()

    def keep() -> None:
        """Write what was executed so far, again and again."""
        wait = threading.Event()
        while not wait.wait(_EVERY_S):
            recorded.save()

    atexit.register(save)
    threading.Thread(target=keep, daemon=True).start()
