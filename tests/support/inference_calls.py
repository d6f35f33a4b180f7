"""Calls of the Open Inference Protocol with plain messages, as a client of any language."""

from __future__ import annotations

from typing import Any, Self

import grpc
import numpy as np
from numpy.typing import NDArray

from gradwire_server.rpc.open_inference.descriptors import NAME, SERVICE, message
from support.raw_calls import CHANNEL_OPTIONS, PATIENCE_S, refusal_of

MODEL = (
    'up=torch_upsample_backward:{"mode":"bilinear","dims":[1,3,64,64],"output_shape":[1,3,32,32]}'
)
SHAPE, RESULT_SHAPE = (1, 3, 64, 64), (1, 3, 32, 32)
DTYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "FP64": "float64"}


def infer_request(
    x: NDArray[Any] | None = None, *, model: str = "up", datatype: str = "FP32", **parameters: Any
) -> Any:
    request = message("ModelInferRequest")(model_name=model)
    if x is not None:
        request.inputs.add(name="x", datatype=datatype, shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
    choices = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in parameters.items():
        setattr(request.parameters[name], choices[type(value)], value)
    return request


def gradient(shape: tuple[int, ...] = SHAPE) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class InferenceClient:
    """The methods of the service, by name, on a channel of their own."""

    def __init__(self, address: str) -> None:
        self.channel: Any = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)

    def call(self, method: str, request: Any = None, **fields: Any) -> Any:
        """Call a unary method with a message, bytes, or the fields of its request."""
        types = SERVICE.methods_by_name[method]
        if request is None:
            request = message(types.input_type.name)(**fields)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        reply = self.channel.unary_unary(f"/{NAME}/{method}")(data, timeout=PATIENCE_S)
        return message(types.output_type.name).FromString(reply)

    def stream(self, requests: list[Any]) -> list[Any]:
        sent = iter([each.SerializeToString() for each in requests])
        call = self.channel.stream_stream(f"/{NAME}/ModelStreamInfer")
        replies = call(sent, timeout=PATIENCE_S)
        return [message("ModelStreamInferResponse").FromString(each) for each in replies]

    def refused(self, method: str, request: Any = None, **fields: Any) -> tuple[str, str]:
        try:
            self.call(method, request, **fields)
        except grpc.RpcError as error:
            failed = refusal_of(error)
            names = {"gradwire-request-id", "traceparent"}
            assert names <= failed.trailers.keys() or failed.code.name == "UNIMPLEMENTED"
            return failed.code.name, failed.message
        raise AssertionError("it did not fail")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
