"""Where the time of one evaluation went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Trailing metadata in the syntax of the header Server-Timing (W3C), milliseconds.
TIMING_KEY = "gradwire-timing"

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time of one evaluation went, in seconds.

    total_s    from the call of evaluate() to its result, with all tries and the pauses between
    tries      how often a server was asked, 1 or more; each part of a shared evaluation counts
    receive_s  of the server, in the last try, or the part that came last: reading and checking what
               was sent
    queue_s    waiting for its memory, threads and tables
    compute_s  computing
    send_s     writing the result; of a single message, what is known of that before it is sent

    Phases of a stream overlap: together they may be longer than the call. None stands for what the
    server did not tell.
    """

    total_s: float
    tries: int
    receive_s: float | None = None
    queue_s: float | None = None
    compute_s: float | None = None
    send_s: float | None = None


def read_timing(trailers: Metadata, *, total_s: float, tries: int) -> Timing:
    """Decode what a server tells; what is not understood counts as not told."""
    told = next((text for key, text in trailers if key == TIMING_KEY), "")
    phases = dict(map(_phase, told.split(","))) if isinstance(told, str) else {}
    return Timing(
        total_s=total_s,
        tries=tries,
        receive_s=phases.get("receive"),
        queue_s=phases.get("queue"),
        compute_s=phases.get("compute"),
        send_s=phases.get("send"),
    )


def _phase(entry: str) -> tuple[str, float | None]:
    """Decode "compute;dur=0.042" as seconds."""
    name, *parameters = (part.strip() for part in entry.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key == "dur":
            try:
                return name, float(value) / 1e3
            except ValueError:
                break
    return name, None
