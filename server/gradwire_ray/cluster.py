"""Access to Ray: placing, finding and calling actors."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gradwire_ray.deployment import Deployment
from gradwire_ray.replica import STOP_S, Replica

# Detached actors are found by their names in it, from any program.
NAMESPACE = "gradwire"
_CONNECT_S = 10.0
_HEAD = "node:__internal_head__"


def log() -> None:
    """Write this package's log lines to the log of an actor's process."""
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s")
    logging.getLogger("gradwire_ray").setLevel(logging.INFO)


def connect(address: str) -> None:
    """Join a cluster as its client.

    Raises RuntimeError if there is no cluster at the address, or no Ray here.
    """
    if find_spec("ray") is None:
        raise RuntimeError('Ray is missing; gradwire-ray needs: pip install "gradwire[ray]"')
    _check_answers(address)
    try:
        _ray().init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error"
        )
    except (ConnectionError, ValueError) as error:
        raise RuntimeError(f"no Ray cluster at {address}: {error}") from error


def _check_answers(address: str) -> None:
    """Raise RuntimeError where nothing listens: Ray itself would try for minutes."""
    name, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or "/" in name:
        return
    try:
        socket.create_connection((name.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no Ray cluster at {address}: {error}") from error


def host() -> str:
    """Return the address of this node for the other nodes."""
    return str(_ray().util.get_node_ip_address())


def _place(kind: type[Any], name: str, **options: Any) -> Any:
    """Return an actor to start, which Ray starts anew wherever it ends."""
    return (
        _ray()
        .remote(kind)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            # While one thread stops the server, another one may wait for its end.
            max_concurrency=4,
            **options,
        )
    )


def place_controller(kind: type[Any], deployment: Deployment) -> Any:
    """Start the controller of a deployment on the node of Ray's head.

    The head's address stays as long as there is a cluster.

    Raises RuntimeError where the name is taken, or there is no head.
    """
    nodes = _ray().nodes()
    heads = [node["NodeID"] for node in nodes if node["Alive"] and _HEAD in node["Resources"]]
    if not heads:
        raise RuntimeError("the cluster has no head")
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    where = affinity(heads[0], soft=False)
    controller = _place(kind, deployment.controller, num_cpus=0, scheduling_strategy=where)
    try:
        return controller.remote(deployment)
    except ValueError as error:
        raise RuntimeError(f"{deployment.name} is up already; take it down first") from error


def place_replica(deployment: Deployment) -> None:
    """Start one replica wherever there is room."""
    name = f"{deployment.name}/replica-{time.time_ns():x}"
    _place(
        _ReplicaActor,
        name,
        num_cpus=deployment.num_cpus,
        num_gpus=deployment.num_gpus,
        scheduling_strategy="SPREAD",
    ).remote(name, deployment)


def replica_names(name: str) -> list[str]:
    """Return the names of running and starting replicas, the oldest first."""
    actors = _ray().util.list_named_actors()
    return sorted(one for one in actors if one.startswith(f"{name}/replica-"))


def stop_replica(name: str, drain_s: float) -> None:
    """Have a replica finish its calls, if it can be reached."""
    with suppress(LookupError, RuntimeError):
        result(actor(name).stop.remote(drain_s), timeout_s=drain_s + 2 * STOP_S)


def remove(name: str) -> None:
    """End an actor for good."""
    with suppress(LookupError):
        _ray().kill(actor(name), no_restart=True)


def result(asked: Any, *, timeout_s: float | None = None) -> Any:
    """Return an actor's answer; raise RuntimeError if it gives none."""
    try:
        return _ray().get(asked, timeout=timeout_s)
    except import_module("ray.exceptions").RayError as error:
        # It holds the whole traceback of another error, which the last line names.
        lines = str(error).strip() or type(error).__name__
        last = lines.splitlines()[-1].strip()
        raise RuntimeError(f"the actor has ended, or does not answer: {last}") from error


def actor(name: str) -> Any:
    """Return the actor of a name; LookupError where there is none."""
    try:
        return _ray().get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        raise LookupError(f"no {name} runs on this cluster") from error


class _ReplicaActor:
    """Replica whose end makes Ray start it anew.

    The actor ends when its server does.
    """

    def __init__(self, name: str, deployment: Deployment) -> None:
        log()
        tell = actor(deployment.controller).tell.options(num_returns=0)
        self._replica = Replica(
            deployment.flags,
            host=host(),
            threads=deployment.threads,
            send=lambda report: tell.remote(name, report),
            on_end=lambda: os._exit(1),
        )

    def stop(self, drain_s: float) -> None:
        self._replica.stop(drain_s)


def _ray() -> Any:
    return import_module("ray")
