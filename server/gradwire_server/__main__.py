"""`gradwire-server` and `python -m gradwire_server`."""

from __future__ import annotations

import os

from gradwire_server.processes import startup


def main() -> None:
    """Run the command; signals are blocked before the other imports."""
    startup.hold()
    startup.open_closed()
    # gRPC's fork handlers start threads in a forked child, which crash before its exec.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from gradwire._wire.environment import configure_grpc  # noqa: PLC0415 - takes long

    configure_grpc()
    from gradwire_server import command  # noqa: PLC0415 - takes long

    command.main()


if __name__ == "__main__":
    main()
