"""grpc's own lines on stderr: in no format of the log, and one for each connection that fails.

Anybody who reaches a port with TLS could fill a disk with them.
"""

from __future__ import annotations

import os


def silence() -> None:
    """Have grpc write none, unless GRPC_VERBOSITY asks for some; it reads that when imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
