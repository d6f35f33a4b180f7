"""A request of this release for each operator, as its SDK writes it."""

from __future__ import annotations

from dialect_tables import EXAMPLES
from gradwire import v1
from gradwire._job import prepare
from raw_calls import REQUEST_ID


def requests() -> dict[str, v1.EvaluateRequest]:
    """Return the first example of every operator, in float32, by its name."""
    made: dict[str, v1.EvaluateRequest] = {}
    for example in EXAMPLES.values():
        job = prepare(example.operator, example.given(), output_shape=example.result, out=None)
        request = v1.EvaluateRequest.FromString(job.unary_request())
        request.request_id = REQUEST_ID
        made.setdefault(example.operator.name, request)
    return made
