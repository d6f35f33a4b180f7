"""EvaluateMany through the generated stub alone, as clients in other languages call it."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Protocol, Self

import grpc

from gradwire import v1
from support.raw_calls import PATIENCE_S, TRACEPARENT, RawClient, float32, identity_request
from support.refusals import Refusal, refusal_of


def named(request: v1.EvaluateRequest, name: str) -> v1.EvaluateManyRequest:
    evaluation = v1.EvaluateRequest.FromString(request.SerializeToString())
    evaluation.request_id = name
    return v1.EvaluateManyRequest(evaluation=evaluation)


def rows(length: int) -> v1.EvaluateRequest:
    """Halve an axis of float32 numbers."""
    request = identity_request(2 * length, data=bytes(8 * length))
    request.output.CopyFrom(float32(length))
    return request


class Responses(Protocol):
    """A running call of grpc."""

    def __iter__(self) -> Iterator[v1.EvaluateManyResponse]: ...
    def __next__(self) -> v1.EvaluateManyResponse: ...
    def cancel(self) -> bool: ...
    def code(self) -> grpc.StatusCode: ...


class ManyCall:
    """A running EvaluateMany; what is sent and when it ends is up to the test.

    answered  requests answered until now
    """

    def __init__(self, client: RawClient, *, timeout_s: float | None = PATIENCE_S) -> None:
        self._requests: SimpleQueue[v1.EvaluateManyRequest | None] = SimpleQueue()
        self._in_band: v1.Error | None = None
        self.answered = 0
        self.call: Responses = client.stub.EvaluateMany(
            iter(self._requests.get, None),
            timeout=timeout_s,
            metadata=(("traceparent", TRACEPARENT),),
        )

    def send(self, *requests: v1.EvaluateManyRequest) -> None:
        for request in requests:
            self._requests.put(request)

    @classmethod
    def of_bytes(cls, client: RawClient, *messages: bytes) -> Self:
        """Send these bytes as messages, then half-close."""
        self = cls(client)
        self.call.cancel()
        self.half_close()
        method: grpc.StreamStreamMultiCallable[bytes, v1.EvaluateManyResponse]
        method = client.channel.stream_stream(
            "/gradwire.v1.GradientService/EvaluateMany",
            response_deserializer=v1.EvaluateManyResponse.FromString,
        )
        self.call = method(iter(messages), timeout=PATIENCE_S)
        return self

    def half_close(self) -> None:
        self._requests.put(None)

    def __iter__(self) -> Iterator[v1.EvaluateManyResponse]:
        """Yield the answers there are until the stream ends with OK."""
        for response in self.call:
            assert self._in_band is None, "an error without a name is the last message"
            if response.request_id:
                if response.WhichOneof("outcome") == "result":
                    assert response.result.request_id == response.request_id
                self.answered += 1
                yield response
            else:
                self._in_band = response.error

    def receive(self) -> v1.EvaluateManyResponse:
        return next(iter(self))

    def answers(self) -> dict[str, v1.EvaluateManyResponse]:
        """Half-close, and return every answer still to come by its name, in their order."""
        self.half_close()
        return {each.request_id: each for each in self}

    def refusal(self) -> Refusal:
        """Read to the end, and return how the stream was refused."""
        try:
            for _ in self:
                pass
        except grpc.RpcError as error:
            return refusal_of(error, self._in_band)
        raise AssertionError("the stream ended with OK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self.half_close()
