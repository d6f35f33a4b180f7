"""Coordinates, taps and weights of an operator's forward, for inspection.

`python -m gradwire_server.rpc.axis_tables` reads request headers from standard input and writes
their tables to standard output, so that a program can use it without importing the server:

    input   JSON, a list of EvaluateRequests without data, each serialized and in base64
    output  an .npz file: "facts", the bytes of a JSON list with one object per request, of the
            fields output_shape, fill, the value of a forward's element that reads no input along
            some axis, and axes, the lengths of each; for axis a of request c "c.a.start",
            "c.a.offset" and "c.a.weight" as in BandedMap and, where the dialect provides them,
            "c.a.coordinates", floating[outputs], the position that each output reads.
            If a request is refused, the file holds only "error", the bytes of an Error

The table limits are the server's, read from the same environment variables:
GRADWIRE_MAX_FLOAT32_AXIS and GRADWIRE_MAX_TABLE_ENTRIES.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import v1
from gradwire_server import dialects
from gradwire_server.backends import compute_dtype
from gradwire_server.dialects.dialect import Axis
from gradwire_server.engine import Limits
from gradwire_server.errors import EvaluationError
from gradwire_server.plans.banded_map import BandedMap, Indices
from gradwire_server.plans.sampling import Taps
from gradwire_server.rpc import codec
from gradwire_server.rpc.status_map import failure

Arrays = dict[str, NDArray[Any]]


def main() -> None:
    """Write the tables of the requests on standard input."""
    headers = [
        v1.EvaluateRequest.FromString(base64.b64decode(text)) for text in json.load(sys.stdin)
    ]
    arrays: Arrays = {}
    try:
        limits = _limits()
        facts = [
            _tables(header, limits, arrays, prefix=str(call)) for call, header in enumerate(headers)
        ]
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    except EvaluationError as error:
        message = failure(error).in_band().SerializeToString()
        arrays = {"error": np.frombuffer(message, np.uint8)}
    out = sys.stdout.buffer
    np.savez(out, **arrays)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def _limits() -> Limits:
    """Read the table limits from the environment, as a server does.

    Raises SystemExit if they are invalid.
    """
    given: dict[str, int] = {}
    for name in ("max_float32_axis", "max_table_entries"):
        variable = f"GRADWIRE_{name.upper()}"
        if text := os.environ.get(variable):
            if not (text.isascii() and text.isdecimal() and int(text)):
                sys.exit(f"{variable} is {text!r}; a whole number of at least 1 is needed")
            given[name] = int(text)
    return Limits(**given)


def _tables(
    header: v1.EvaluateRequest, limits: Limits, arrays: Arrays, *, prefix: str
) -> dict[str, Any]:
    """Build the tables that an evaluation uses; return its facts.

    Raises EvaluationError as the evaluation does.
    """
    request = codec.read_request(header)
    result = request.resolved()
    told = dialects.forward(
        request.operator,
        request.attributes,
        request.input.sizes,
        result.sizes,
        compute=compute_dtype(request.input.dtype),
        max_float32_axis=limits.max_float32_axis,
        max_table_entries=limits.max_table_entries,
    )
    sides: list[dict[str, int]] = []
    for number, (given, length) in enumerate(zip(told.axes, told.call.source, strict=True)):
        axis = given or Axis(length, length, 1, _identity, ())
        blocks = list(axis.blocks())
        taps = ((one.index, one.weight) for one in blocks)
        table = BandedMap.from_blocks(taps, inputs=axis.inputs)
        sides.append({"inputs": table.inputs, "outputs": table.outputs})
        for name in ("start", "offset", "weight"):
            arrays[f"{prefix}.{number}.{name}"] = getattr(table, name)
        places = [one.coordinates for one in blocks if one.coordinates is not None]
        if places:
            arrays[f"{prefix}.{number}.coordinates"] = np.concatenate(places)
    return {"output_shape": list(result.sizes), "fill": told.fill, "axes": sides}


def _identity(outputs: Indices) -> Taps:
    index = outputs[:, np.newaxis]
    return Taps(index, np.ones(index.shape), outputs.astype(np.float64))


if __name__ == "__main__":
    main()
