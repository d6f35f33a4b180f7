"""A request for each operator, as the SDK writes it, and what a server answers.

PYTHONPATH=tests python -m contract.wire_exchange

writes those of this release to tests/data, for the servers and SDKs of later ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from gradwire import v1
from gradwire._wire.requests import prepare
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support.oracles.dialect_tables import EXAMPLES
from support.raw_calls import PATIENCE_S, REQUEST_ID, RawClient
from support.servers import serving

EXCHANGE = Path(__file__).parents[1] / "data" / "exchange.json"


def requests() -> dict[str, v1.EvaluateRequest]:
    """Return the first example of every operator, in float32, by its name."""
    made: dict[str, v1.EvaluateRequest] = {}
    for example in EXAMPLES.values():
        job = prepare(example.operator, example.given(), output_shape=example.result, out=None)
        request = v1.EvaluateRequest.FromString(job.unary_request()[0])
        request.request_id = REQUEST_ID
        made.setdefault(example.operator.name, request)
    return made


def record(client: RawClient) -> dict[str, dict[str, str]]:
    """Have a server answer them; return the bytes of requests and answers in hexadecimals."""
    recorded: dict[str, dict[str, str]] = {}
    for name, request in requests().items():
        reply = client.stub.Evaluate(request, timeout=PATIENCE_S)
        recorded[name] = {
            "request": request.SerializeToString().hex(),
            "answer": reply.SerializeToString(deterministic=True).hex(),
        }
    return recorded


def main() -> None:
    with serving(backend=NumpyCpu()) as server, RawClient(server.address) as client:
        told = client.stub.GetServerInfo(v1.GetServerInfoRequest())
        exchange = {"release": told.version, "evaluations": record(client)}
    EXCHANGE.write_text(json.dumps(exchange, indent=1) + "\n")


if __name__ == "__main__":
    main()
