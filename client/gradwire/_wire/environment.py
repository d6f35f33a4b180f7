"""Installed version, and environment variables of client and server."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    """Return the distribution's version, or "0+source" for an uninstalled source tree."""
    try:
        return version("gradwire")
    except PackageNotFoundError:
        return "0+source"


VERSION = _installed_version()

PREFIX = "GRADWIRE_"
TARGET_VARIABLE = "GRADWIRE_TARGET"
TLS_VARIABLE = "GRADWIRE_TLS"
TOKEN_VARIABLE = "GRADWIRE_TOKEN"  # noqa: S105 - the variable's name
TOKEN_FILE_VARIABLE = "GRADWIRE_TOKEN_FILE"  # noqa: S105
CHECKSUMS_VARIABLE = "GRADWIRE_CHECKSUMS"
CLIENT_VARIABLES = (
    TARGET_VARIABLE,
    TLS_VARIABLE,
    TOKEN_VARIABLE,
    TOKEN_FILE_VARIABLE,
    CHECKSUMS_VARIABLE,
)
# Of programs, not of the SDK: its process and its grpc belong to others. grpc reads them on import.
GRPC_VARIABLES = {
    # grpc's lines on stderr do not have the format of the log, and there is one for each failed
    # connection: any client that reaches a port with TLS could fill a disk.
    "GRPC_VERBOSITY": "NONE",
    # With the EventEngine, the default since grpcio 1.80, requests pass through one more thread:
    # small calls one after another have 0.7 of the rate. Later releases may ignore this. Clients
    # keep it: without it they connect only while a call waits, and a TLS handshake may never end.
    "GRPC_EXPERIMENTS": "-event_engine_listener",
}
# deploy/compose/compose.yaml reads these.
COMPOSE_VARIABLES = ("GRADWIRE_IMAGE", "GRADWIRE_NAMES", "GRADWIRE_PUBLISH")
# Settings of the server, for commands that start one. The SDK never imports the server; a test
# compares this list with the settings.
_SETTINGS = """
ADDRESS LOCAL_SOCKET SHARED_MEMORY SHARED_MEMORY_USERS OPEN_INFERENCE OPEN_INFERENCE_MEMORY MODEL
INSECURE TLS_CERTIFICATE TLS_KEY TLS_CLIENT_CA TOKENS ANONYMOUS_SCOPES BACKEND
COMPUTE_THREADS WORKERS WARM_UP WAIT_FOR_KERNELS COMPILE_CACHE
CUDA_DEVICES CUDA_MEMORY_BYTES SLAB_BYTES MAX_RANK
MAX_ELEMENTS MAX_TABLE_ENTRIES MAX_FLOAT32_AXIS MAX_WORK MAX_REQUEST_MEMORY_BYTES
MAX_MEMORY_BYTES MAX_UNARY_BYTES MAX_CHUNK_BYTES MAX_MESSAGE_BYTES
MAX_STREAMS MAX_IN_FLIGHT MAX_CONNECTION_CALLS MAX_QUEUE MAX_QUEUE_S
STALL_TIMEOUT_S DRAIN_DELAY_S GRACE_S MAX_CONNECTION_AGE_S LOG_FORMAT LOG_LEVEL ACCESS_LOG
HTTP_PORT HTTP_OPEN HTTP_HOSTS OTLP_ENDPOINT
"""
SERVER_VARIABLES = tuple(f"{PREFIX}{name}" for name in _SETTINGS.split())


def configure_grpc() -> None:
    """Set the variables of grpc that are not set."""
    for name, value in GRPC_VARIABLES.items():
        os.environ.setdefault(name, value)


def unknown_variables(settings: Collection[str]) -> Iterator[str]:
    """Yield a message for each variable of an unknown name.

    Known names are those of settings and of the client's variables.
    """
    known = {*settings, *CLIENT_VARIABLES}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known and name not in COMPOSE_VARIABLES:
            # The prefix is left out: it makes any two names alike.
            short = [each.removeprefix(PREFIX) for each in sorted(known)]
            near = get_close_matches(name.removeprefix(PREFIX), short, 1)
            yield f"{name} is not a setting of gradwire" + (
                f"; did you mean {PREFIX}{near[0]}?" if near else ""
            )
