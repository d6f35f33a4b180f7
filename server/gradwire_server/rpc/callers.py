"""Who calls, and until when: what admission asks of a call's context."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterable
from typing import Protocol

from gradwire_server.engine import Preparation, Prepared
from gradwire_server.scheduling.turns import Claim


class Context(Protocol):
    """What is asked of a call's context."""

    def peer(self) -> str:
        """Return the address of the other end."""
        ...

    def peer_identities(self) -> Iterable[bytes] | None:
        """Return what the client's certificate says who it is."""
        ...

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline."""
        ...


def caller_of(context: Context) -> Hashable:
    """Return who shares with whom: a client's certificate, or the machine that calls.

    Not the connection: whoever opens several would get several shares.
    """
    identities = context.peer_identities()
    if identities:
        return tuple(identities)
    return context.peer().rpartition(":")[0]


def deadline_of(context: Context) -> float:
    """Return the call's deadline on the monotonic clock; infinite for none."""
    left_s = context.time_remaining()
    return math.inf if left_s is None else time.monotonic() + left_s


def claim_of_tables(preparation: Preparation, context: Context) -> Claim:
    """Return what preparing a request claims."""
    return Claim(
        work=preparation.work,
        peer=caller_of(context),
        deadline=deadline_of(context),
        tables=True,
    )


def claim_of_batch(prepared: Prepared, context: Context, *, count: int, at_once: bool) -> Claim:
    """Return what so many equal requests of an EvaluateMany stream claim.

    at_once  whether they are computed in one turn. The caller sends no more than the server lets
             it: they wait, and are never refused
    """
    return Claim(
        work=count * prepared.work,
        part=1.0 if at_once else prepared.step_part,
        peer=caller_of(context),
        deadline=deadline_of(context),
        paced=True,
    )


def claim_of(
    prepared: Prepared, context: Context, *, left: float = 1.0, paced: bool = False
) -> Claim:
    """Return what an evaluation claims; paced as engine.Claim says.

    left  part of it that is not done yet
    """
    return Claim(
        work=math.ceil(prepared.work * left),
        part=min(1.0, prepared.step_part / left),
        peer=caller_of(context),
        deadline=deadline_of(context),
        paced=paced,
    )
