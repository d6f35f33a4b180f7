"""Coordinates, taps and weights of an operator's forward, for inspection.

`python -m gradwire_server.rpc.axis_tables` reads request headers from standard input and writes
their tables to standard output, so that a program can use it without importing the server:

    input   JSON, a list of EvaluateRequests without data, each serialized and in base64
    output  an .npz file: "facts", the bytes of a JSON list with one object per request, of the
            fields of OperatorTables; for axis a of request c "c.a.start", "c.a.offset" and
            "c.a.weight" as in BandedMap and, where the dialect provides them, "c.a.coordinates".
            If a request is refused, the file holds only "error", the bytes of an Error

The table limits are the server's, read from the same environment variables:
GRADWIRE_MAX_FLOAT32_AXIS and GRADWIRE_MAX_TABLE_ENTRIES.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import v1
from gradwire_server import dialects
from gradwire_server.backends import compute_dtype
from gradwire_server.dialects.dialect import Axis
from gradwire_server.engine import Limits
from gradwire_server.errors import EvaluationError
from gradwire_server.plans.banded_map import BandedMap
from gradwire_server.plans.sampling import Coordinates
from gradwire_server.rpc import codec
from gradwire_server.rpc.status_map import failure


@dataclass(frozen=True, slots=True)
class OperatorAxis:
    """The forward along one axis.

    map          output i reads the inputs of its band
    coordinates  floating[outputs], the position that each output reads, in the dialect's
                 arithmetic; None if the dialect does not provide it
    """

    map: BandedMap
    coordinates: Coordinates | None


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """The tables of all axes of a request.

    output_shape  shape of the result
    fill          value of a forward's element that reads no input along some axis
    axes          one table per axis
    """

    output_shape: tuple[int, ...]
    fill: float
    axes: tuple[OperatorAxis, ...]


def tables(header: v1.EvaluateRequest, limits: Limits | None = None) -> OperatorTables:
    """Return the tables that an evaluation uses.

    Raises EvaluationError as the evaluation does.

    limits  None means the server's defaults
    """
    limits = limits or Limits()
    request, result = codec.read_request(header).resolved()
    told = dialects.forward(
        request.operator,
        request.attributes,
        request.input.sizes,
        result.sizes,
        compute=compute_dtype(request.input.dtype),
        max_float32_axis=limits.max_float32_axis,
        max_table_entries=limits.max_table_entries,
    )
    return OperatorTables(result.sizes, told.fill, tuple(map(_table, told.axes, told.call.source)))


def _table(axis: Axis | None, length: int) -> OperatorAxis:
    """Build the table of one axis; None is the identity."""
    if axis is None:
        place = np.arange(length)
        identity = BandedMap(length, length, place, np.arange(length + 1), np.ones(length))
        return OperatorAxis(identity, place.astype(np.float64))
    blocks = list(axis.blocks())
    table = BandedMap.from_blocks(((one.index, one.weight) for one in blocks), inputs=axis.inputs)
    places = [one.coordinates for one in blocks if one.coordinates is not None]
    return OperatorAxis(table, np.concatenate(places) if places else None)


def main() -> None:
    """Write the tables of the requests on standard input."""
    headers = [
        v1.EvaluateRequest.FromString(base64.b64decode(text)) for text in json.load(sys.stdin)
    ]
    try:
        limits = _limits()
        arrays = _arrays([tables(header, limits) for header in headers])
    except EvaluationError as error:
        message = failure(error).in_band().SerializeToString()
        arrays = {"error": np.frombuffer(message, np.uint8)}
    answer = io.BytesIO()
    np.savez(answer, **arrays)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sys.stdout.buffer.write(answer.getbuffer())


def _limits() -> Limits:
    """Read the table limits from the environment, as a server does.

    Raises SystemExit if they are invalid.
    """
    given: dict[str, int] = {}
    for name in ("max_float32_axis", "max_table_entries"):
        variable = f"GRADWIRE_{name.upper()}"
        text = os.environ.get(variable, "")
        if text and not (text.isascii() and text.isdecimal() and int(text)):
            sys.exit(f"{variable} is {text!r}; a whole number of at least 1 is needed")
        if text:
            given[name] = int(text)
    return Limits(**given)


def _arrays(answers: list[OperatorTables]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    facts: list[dict[str, Any]] = []
    for call, answer in enumerate(answers):
        sides: list[dict[str, int]] = []
        for number, axis in enumerate(answer.axes):
            sides.append({"inputs": axis.map.inputs, "outputs": axis.map.outputs})
            for name in ("start", "offset", "weight"):
                arrays[f"{call}.{number}.{name}"] = getattr(axis.map, name)
            if axis.coordinates is not None:
                arrays[f"{call}.{number}.coordinates"] = axis.coordinates
        shape = list(answer.output_shape)
        facts.append({"output_shape": shape, "fill": answer.fill, "axes": sides})
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    return arrays


if __name__ == "__main__":
    main()
