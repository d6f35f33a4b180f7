"""Command line of gradwire-ray: up, status, down."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

import click

from gradwire._wire.environment import VERSION
from gradwire_ray import cluster
from gradwire_ray.controller import Controller
from gradwire_ray.deployment import Deployment

_ASK_S = 30.0
_LOOK_S = 0.5

_cluster = click.option(
    "--address",
    default="auto",
    show_default=True,
    envvar="RAY_ADDRESS",
    show_envvar=True,
    help="The Ray cluster, HOST:PORT of its head; auto is the one this machine belongs to.",
)
_name = click.option("--name", default="gradwire", show_default=True, help="Which deployment.")


@click.group(context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gradwire-ray", message="%(prog)s %(version)s")
def gradwire_ray() -> None:
    """Run gradwire-server on the nodes of a Ray cluster.

    Clients find the replicas by the target that `up` prints. gradwire has to be installed on every
    node, of the same release.
    """


@gradwire_ray.command()
@_cluster
@_name
@click.option("--min", "least", type=int, default=1, show_default=True, help="Fewest replicas.")
@click.option(
    "--max", "most", type=int, default=None, help="Most replicas; by default as --min: no scaling."
)
@click.option(
    "--target-queue",
    default=1.0,
    show_default=True,
    help="Evaluations that may wait at each replica, on average, before more are placed.",
)
@click.option(
    "--down-after-s",
    default=60.0,
    show_default=True,
    help="Seconds in which one replica fewer would do before one goes.",
)
@click.option(
    "--num-cpus",
    default=1.0,
    show_default=True,
    help="CPUs of each replica; it computes in so many threads, one at least.",
)
@click.option(
    "--num-gpus", default=0.0, show_default=True, help="GPUs of each replica, such as 0.25."
)
@click.option(
    "--port",
    default=50050,
    show_default=True,
    help="Port of the list of replicas, on the cluster's head; 0 takes a free one, to try it.",
)
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds until --min replicas have to serve.",
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVER_FLAG ...]")
def up(address: str, *, most: int | None, least: int, wait_s: float, **values: Any) -> None:
    """Place replicas, wait until they serve, print the target for clients.

    Arguments after -- are flags of gradwire-server for every replica: --tls-certificate, --tokens,
    --backend and so on. Files that they name have to be on every node, at the same absolute path.
    Servers listen on their node's address, which needs TLS or --insecure.
    """
    deployment = Deployment(least=least, most=least if most is None else most, **values)
    cluster.connect(address)
    _check_nothing_is_left(deployment.name)
    actor = cluster.place_controller(Controller, deployment)
    try:
        target = _wait(actor, deployment.least, until=time.monotonic() + wait_s)
    except BaseException:
        with suppress(LookupError, RuntimeError):
            _take_down(deployment.name)
        raise
    click.echo(target)


def _check_nothing_is_left(name: str) -> None:
    """Raise RuntimeError where replicas serve that no controller of this name lists."""
    with suppress(LookupError):
        _controller(name)
        return
    if cluster.replica_names(name):
        raise RuntimeError(
            f"replicas of an earlier {name} are left, whose controller has ended; "
            f"gradwire-ray down --name {name} ends them"
        )


def _controller(name: str) -> Any:
    return cluster.actor(f"{name}/controller")


def _ask(actor: Any) -> Any:
    return cluster.result(actor.status.remote(), timeout_s=_ASK_S)


def _wait(actor: Any, least: int, *, until: float) -> str:
    """Wait until enough replicas serve; return the target.

    Raises RuntimeError if too few serve by `until`, or if one reports a failure.
    """
    while True:
        status = _ask(actor)
        serving = sum(one["state"] == "serving" for one in status["replicas"])
        if serving >= least:
            return str(status["target"])
        # A server whose start fails would fail again, mostly because of its flags.
        if status["failure"] or time.monotonic() > until:
            why = status["failure"] or "the cluster may have no room for more, see `ray status`"
            raise RuntimeError(f"{serving} of {least} replicas serve: {why}")
        time.sleep(_LOOK_S)


@gradwire_ray.command()
@_cluster
@_name
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(address: str, name: str, *, as_json: bool) -> None:
    """Show the address, the state and the load of each replica."""
    cluster.connect(address)
    told = _ask(_controller(name))
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(f"{told['target']}  {told['wanted']} wanted, of {told['least']} to {told['most']}")
    for one in told["replicas"]:
        words = [one["name"].rpartition("/")[2], f"{one['state']:8}"]
        if "address" in one:
            words += [f"{one['address']:21}", f"pid {one['pid']}", f"waiting {one['waiting']}"]
            words += [f"busy {one['busy']:.0%}", f"loop {one['loop']:.0%}"]
        click.echo("  ".join(words))
    if told["failure"]:
        click.echo(f"the last replica to be placed has failed: {told['failure']}")


@gradwire_ray.command()
@_cluster
@_name
def down(address: str, name: str) -> None:
    """Have all replicas finish their calls, and end."""
    cluster.connect(address)
    try:
        _take_down(name)
    except LookupError:
        left = cluster.replica_names(name)
        if not left:
            raise
        # Their controller is gone, so nothing else lists them.
        for replica in left:
            cluster.remove(replica)


def _take_down(name: str) -> None:
    cluster.result(_controller(name).stop.remote())
    cluster.remove(f"{name}/controller")


def main() -> None:
    """Run the command."""
    try:
        gradwire_ray.main(prog_name="gradwire-ray")
    except (ValueError, LookupError, RuntimeError) as error:
        sys.exit(f"Error: {error}")
