"""The seam between messages and bytes: grpc gets its serializers from here, and nowhere else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwire import v1

Bytes = NDArray[np.uint8]

EVALUATE = (v1.EvaluateRequest.FromString, v1.EvaluateResponse.SerializeToString)
EVALUATE_STREAM = (v1.EvaluateStreamRequest.FromString, v1.EvaluateStreamResponse.SerializeToString)
LIST_OPERATORS = (v1.ListOperatorsRequest.FromString, v1.ListOperatorsResponse.SerializeToString)
GET_SERVER_INFO = (v1.GetServerInfoRequest.FromString, v1.GetServerInfoResponse.SerializeToString)


def chunk_bytes(chunk: v1.Chunk) -> Bytes:
    """View the bytes of a chunk."""
    return np.frombuffer(chunk.data, np.uint8)


def chunk_response(offset: int, data: Bytes) -> v1.EvaluateStreamResponse:
    """Make the message that carries result bytes from offset on."""
    return v1.EvaluateStreamResponse(chunk=v1.Chunk(offset=offset, data=data.tobytes()))
