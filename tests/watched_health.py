"""What the health service of a server tells, one status after the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_PATIENCE_S = 60.0


class Watched:
    """Statuses that Watch has told of the whole server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.seen = list[str]()
        request = health_pb2.HealthCheckRequest()
        self._watch = cast("Any", health_pb2_grpc.HealthStub(channel)).Watch(request)
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, *statuses: str) -> None:
        """Wait until these were told, in this order and no others."""
        until = time.monotonic() + _PATIENCE_S
        while self.seen != list(statuses):
            assert time.monotonic() < until, self.seen
            time.sleep(0.01)

    def _read(self) -> None:
        names = health_pb2.HealthCheckResponse.ServingStatus
        with contextlib.suppress(grpc.RpcError):
            self.seen.extend(names.Name(each.status) for each in self._watch)


@contextmanager
def watching(address: str) -> Generator[Watched]:
    """Watch the health of a server that serves."""
    with grpc.insecure_channel(address) as channel:
        watched = Watched(channel)
        watched.wait_for("SERVING")
        yield watched
