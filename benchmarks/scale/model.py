"""Model of the time that servers take to share one evaluation.

    python -m benchmarks scale-model [--json FILE]

Bytes flow as fluids, in steps of time. Input flows from the client over its one link, which the
shares divide evenly, and over each server's own link. Servers compute it at a rate, at most as fast
as it arrives; results flow back likewise. A server computes a step when all its input has arrived,
and sends its result afterwards. 1 to 64 servers, by default at 200 Mbit/s each and 10 Gbit/s for
the client.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine

Array = NDArray[np.float64]
COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bounds of an evaluation, in bytes and seconds.

    link        of each server, bytes per second each way
    client      of the client, likewise
    compute     bytes of input that one server computes per second
    round_trip  seconds; a share waits for one and a half before its first byte arrives
    halo        bytes of input, at most, that a share reads beside its own part
    step        bytes of input that a server collects before it computes
    """

    link: float = 25e6
    client: float = 1.25e9
    compute: float = math.inf
    round_trip: float = 0.0005
    halo: float = 0.0
    step: float = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Model:
    """An evaluation: bytes of its input and of its result."""

    up: float
    down: float
    rates: Rates = Rates()


def formula(model: Model, servers: int) -> float:
    """Return the seconds of a pipeline of three stages.

    The stages are the way to the server, the computation, and the way back. One step passes all of
    them; the others follow at the pace of the slowest.
    """
    rates = model.rates
    read, given = model.up / servers + _halo(model, servers), model.down / servers
    link = min(rates.link, rates.client / servers)
    stages = read / link, read / rates.compute, given / link
    one = min(rates.step, read) / read
    return 1.5 * rates.round_trip + one * sum(stages) + (1 - one) * max(stages)


def simulate(model: Model, servers: int, *, steps: int = 4000) -> float:
    """Return the seconds until the last server's last byte arrives."""
    rates = model.rates
    read, given = model.up / servers + _halo(model, servers), model.down / servers
    tick = formula(model, servers) / steps
    arrived, computed, returned = (np.zeros(servers) for _ in range(3))
    clock = 0.0
    while returned.min() < given * (1 - 1e-9):
        arrived += _flow(read - arrived, rates, tick)
        computed = np.minimum(_whole_steps(arrived, read, rates), computed + rates.compute * tick)
        ready = given * _whole_steps(computed, read, rates) / read
        returned += _flow(ready - returned, rates, tick)
        clock += tick
    return 1.5 * rates.round_trip + clock


def _whole_steps(reached: Array, read: float, rates: Rates) -> Array:
    return np.where(reached >= read, read, rates.step * np.floor(reached / rates.step))


def _flow(waiting: Array, rates: Rates, tick: float) -> Array:
    """Divide the client's link among servers with waiting bytes.

    A server gets at most the rate of its own link.
    """
    active = int(np.count_nonzero(waiting > 0))
    return np.minimum(waiting, tick * min(rates.link, rates.client / max(1, active)))


def _halo(model: Model, servers: int) -> float:
    return model.rates.halo if servers > 1 else 0.0


def main(argv: list[str] | None = None) -> int:
    """Print formula and simulation for 1 to 64 servers."""
    told = machine.parser("scale-model", __doc__).parse_args(argv)
    cases = {
        "1 GiB, 10 Gbit/s client": Model(2.0**30, 2.0**28),
        "1 GiB, 1 Gbit/s client": Model(2.0**30, 2.0**28, Rates(client=125e6)),
        "25.7 MB, 10 Gbit/s client": Model(25.7e6, 6.4e6),
        "64 MiB of 64 rows, halo 4 rows": Model(2.0**26, 2.0**24, Rates(halo=2.0**22)),
    }
    rows = {
        name: {str(count): [formula(model, count), simulate(model, count)] for count in COUNTS}
        for name, model in cases.items()
    }
    for name, counts in rows.items():
        alone = counts["1"][1]
        sys.stdout.write(f"{name}\n")
        for count, (told_s, simulated_s) in counts.items():
            line = f"{count:>4}: {told_s:.3f} s, {simulated_s:.3f} s, x{alone / simulated_s:.1f}"
            sys.stdout.write(line + "\n")
    apart = max(abs(told_s / by - 1) for row in rows.values() for told_s, by in row.values())
    sys.stdout.write(f"formula and simulation are at most {apart:.0%} apart\n")
    machine.write(told.json, {"seconds": rows})
    return 0
