"""Plans as a description and tables, to be sent to another process: neither is code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.device_process.channels import Message
from gradwire_server.plans import BandedMap, Pass, Plan

Array = npt.NDArray[Any]

# start, offset and weight
_TABLES = 3


def encoded(plan: Plan) -> tuple[Message, list[Array]]:
    """Return the description of a plan, and start, offset and weight of every map in it."""
    maps = {id(one.map): one.map for one in plan.passes}
    numbers = {key: number for number, key in enumerate(maps)}
    header: Message = {
        "input_shape": [int(length) for length in plan.input_shape],
        "output_shape": [int(length) for length in plan.output_shape],
        "fill": float(plan.fill),
        "maps": [(int(one.outputs), int(one.inputs)) for one in maps.values()],
        "passes": [(one.axis, numbers[id(one.map)]) for one in plan.passes],
    }
    return header, [table for one in maps.values() for table in (one.start, one.offset, one.weight)]


def decoded(header: Message, tables: Sequence[Array]) -> Plan:
    """Return the plan that was encoded, with tables of its own; passes share maps as they did.

    Raises ValueError where they make no plan.
    """
    own = [np.array(one) for one in tables]
    sides: list[tuple[int, int]] = header["maps"]
    passes: list[tuple[int, int]] = header["passes"]
    maps = [
        BandedMap(outputs, inputs, *own[first : first + _TABLES])
        for (outputs, inputs), first in zip(sides, range(0, len(own), _TABLES), strict=True)
    ]
    return Plan(
        tuple(header["input_shape"]),
        tuple(header["output_shape"]),
        tuple(Pass(axis, maps[number]) for axis, number in passes),
        header["fill"],
    )


def of_bands(bands: BandedMap) -> Plan:
    """Return a plan that holds just these bands, as its one pass."""
    return Plan((bands.inputs,), (bands.outputs,), (Pass(0, bands),))
