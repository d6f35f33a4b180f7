"""Environment variables of gradwire, and warnings of unknown ones."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from gradwire._targets import VARIABLE
from gradwire._tokens import FILE_VARIABLE, TOKEN_VARIABLE

PREFIX = "GRADWIRE_"
CLIENT_VARIABLES = (VARIABLE, TOKEN_VARIABLE, FILE_VARIABLE)
# deploy/compose/compose.yaml reads these.
COMPOSE_VARIABLES = ("GRADWIRE_IMAGE", "GRADWIRE_NAMES", "GRADWIRE_PUBLISH")
# Commands start a server with these. The SDK never imports the server: a test compares the list.
_SETTINGS = """
ADDRESS INSECURE TLS_CERTIFICATE TLS_KEY TLS_CLIENT_CA TOKENS ANONYMOUS_SCOPES BACKEND
COMPUTE_THREADS COMPUTE_NICENESS WORKERS PIN_WORKERS WARM_UP COMPILE_CACHE CUDA_DEVICES
CUDA_MEMORY_BYTES SLAB_BYTES PLAN_CACHE_ENTRIES MAX_RANK
MAX_ELEMENTS MAX_TABLE_ENTRIES MAX_FLOAT32_AXIS MAX_WORK MAX_REQUEST_MEMORY_BYTES
MAX_MEMORY_BYTES MALLOC_KEEP_BYTES MAX_UNARY_BYTES MAX_CHUNK_BYTES MAX_MESSAGE_BYTES
MAX_STREAMS MAX_IN_FLIGHT MAX_CONNECTION_CALLS MAX_QUEUE MAX_QUEUE_S
MAX_STANDING_QUEUE_S RETRY_AFTER_S STALL_TIMEOUT_S DRAIN_DELAY_S GRACE_S
MAX_CONNECTION_AGE_S MAX_CONNECTION_AGE_GRACE_S TRIM_AFTER_S LOG_FORMAT LOG_LEVEL ACCESS_LOG
HTTP_PORT HTTP_OPEN HTTP_HOSTS OTLP_ENDPOINT
"""
SERVER_VARIABLES = tuple(f"{PREFIX}{name}" for name in _SETTINGS.split())


def unknown_variables(settings: Collection[str]) -> Iterator[str]:
    """Yield a sentence on each variable of this process that neither settings nor clients have."""
    known = {*settings, *CLIENT_VARIABLES}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known and name not in COMPOSE_VARIABLES:
            near = get_close_matches(name, sorted(known), 1)
            yield f"{name} is no setting of gradwire" + (
                f"; did you mean {near[0]}?" if near else ""
            )
