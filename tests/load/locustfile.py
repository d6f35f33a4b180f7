"""Locust's side of agreement.py: users who evaluate one gradient, by gevent.

    LOAD_REQUEST=FILE LOAD_TIMES=FILE [LOAD_RATE=N LOAD_USERS=N] locust -f locustfile.py ...

The rate is that of all users, in calls per second.

Needs Locust, grpcio and nothing of gradwire: the request is sent as its bytes stand in a file, and
the reply is not looked into.
"""

from __future__ import annotations

import json
import os
import time
from itertools import count
from pathlib import Path
from typing import Any

import gevent
import grpc
from grpc.experimental import gevent as grpc_gevent
from locust import User, constant, constant_throughput, events, task

grpc_gevent.init_gevent()

_METHOD = "/gradwire.v1.GradientService/Evaluate"
_REQUEST = Path(os.environ["LOAD_REQUEST"]).read_bytes()
_RATE = float(os.environ.get("LOAD_RATE", "0"))
_USERS = int(os.environ.get("LOAD_USERS", "1"))
_TIMES: list[tuple[float, float]] = []


class Caller(User):
    """A user with a connection of its own, who takes turns with the others at a rate."""

    wait_time = constant_throughput(_RATE / _USERS) if _RATE else constant(0)
    _numbers = count()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self._channel = grpc.insecure_channel(self.host, options=options)
        self._evaluate = self._channel.unary_unary(_METHOD)
        self._number = next(self._numbers)

    def on_start(self) -> None:
        """Wait for the user's turn."""
        if _RATE:
            gevent.sleep((self._number / _RATE - time.monotonic()) % (_USERS / _RATE))

    @task
    def evaluate(self) -> None:
        """Call once; tell Locust, whose percentiles are whole milliseconds, and keep the time."""
        began = time.monotonic()
        failure, size = None, 0
        try:
            size = len(self._evaluate(_REQUEST, timeout=20))
        except grpc.RpcError as error:
            failure = error
        took = time.monotonic() - began
        if failure is None:
            _TIMES.append((began, took))
        self.environment.events.request.fire(
            request_type="grpc",
            name="Evaluate",
            response_time=took * 1e3,
            response_length=size,
            exception=failure,
            context={},
        )


@events.quitting.add_listener
def _keep(**_: Any) -> None:
    Path(os.environ["LOAD_TIMES"]).write_text(json.dumps(_TIMES), encoding="utf-8")
