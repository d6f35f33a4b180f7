"""Flags of settings, and between which numbers a setting can be."""

from __future__ import annotations

from gradwire_server.engine import Limits

# What messages and grpc can carry, and what a machine can; in seconds some thirty years.
_MOST = {
    # From 0, the least that a niceness may be made without rights, to the greatest there is.
    "compute_niceness": 19,
    "max_rank": Limits().max_rank,
    "max_message_bytes": 2**31 - 1,
    "max_connection_calls": 2**31 - 1,
    "malloc_keep_bytes": 2**31 - 1,
    # More than any machine has cores: a port, say, given by mistake would end the machine.
    "workers": 1024,
}
_MOST_S = 1e9
_MOST_INT = 2**63 - 1
_MAY_BE_ZERO = {
    "compute_niceness",
    "compute_threads",
    "drain_delay_s",
    "grace_s",
    "malloc_keep_bytes",
    "max_connection_age_s",
    "plan_cache_entries",
    "trim_after_s",
    "workers",
}


def flag(name: str) -> str:
    """Return the flag of the setting called `name`."""
    return f"--{name.replace('_', '-')}"


def check_number(name: str, value: float) -> None:
    """Raise ValueError where a setting's number is out of bounds, or none; it names the flag."""
    least = 0 if name in _MAY_BE_ZERO else 1 if isinstance(value, int) else 0.001
    if not value >= least:
        raise ValueError(f"{flag(name)} is {value}; at least {least} is needed")
    most = _MOST_S if isinstance(value, float) else _MOST.get(name, _MOST_INT)
    if value > most:
        raise ValueError(f"{flag(name)} is {value}; at most {most} is possible")
