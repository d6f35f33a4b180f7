"""`gradwire-server` and `python -m gradwire_server`."""

from __future__ import annotations

import os
import resource
import sys

from gradwire_server.processes import startup

# With 450 MB libraries were seen to end the process by a signal, or to wait for ever, in silence.
_LEAST_ADDRESS_SPACE = 1 << 30


def main() -> None:
    """Run the command; signals are blocked before the other imports."""
    startup.hold()
    startup.open_closed()
    _warn_of_address_space()
    # gRPC's fork handlers start threads in a forked child, which crash before its exec.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from gradwire._wire.environment import configure_grpc  # noqa: PLC0415 - takes long

    configure_grpc()
    from gradwire_server import command  # noqa: PLC0415 - takes long

    command.main()


def _warn_of_address_space() -> None:
    """Warn of a low limit of address space.

    The warning comes first, since libraries that find no memory crash.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE:
        print(  # noqa: T201 - there is no log yet
            f"Warning: this process is allowed {limit} bytes of address space (RLIMIT_AS, ulimit "
            f"-v); with less than {_LEAST_ADDRESS_SPACE} it may crash without a message",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
