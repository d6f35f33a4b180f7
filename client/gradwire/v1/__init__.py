"""The gradwire.v1 wire API: import this package, not the generated modules in it."""

from gradwire.v1.error_reason_pb2 import (
    ErrorReason,
)
from gradwire.v1.gradient_service_pb2 import (
    Chunk,
    Error,
    EvaluateManyRequest,
    EvaluateManyResponse,
    EvaluateRequest,
    EvaluateResponse,
    EvaluateSharedRequest,
    EvaluateSharedResponse,
    EvaluateStreamRequest,
    EvaluateStreamResponse,
    Open,
    Opened,
    Options,
    SharedRange,
)
from gradwire.v1.gradient_service_pb2_grpc import (
    GradientServiceServicer,
    GradientServiceStub,
    add_GradientServiceServicer_to_server,
)
from gradwire.v1.jax_pb2 import (
    JaxResize,
)
from gradwire.v1.onnx_pb2 import (
    OnnxResize,
)
from gradwire.v1.openvino_pb2 import (
    OpenvinoInterpolate,
)
from gradwire.v1.operator_pb2 import (
    DmlAxisDirection,
    DmlInterpolationMode,
    DmlNearestRounding,
    DmlOffsetConvention,
    DmlResample,
    DmlResample2,
    Interpolate,
    Operator,
)
from gradwire.v1.server_info_pb2 import (
    AttributeInfo,
    GetServerInfoRequest,
    GetServerInfoResponse,
    Limits,
    ListOperatorsRequest,
    ListOperatorsResponse,
    OperatorInfo,
)
from gradwire.v1.tensor_pb2 import (
    DataType,
    TensorDescriptor,
)
from gradwire.v1.tensorflow_pb2 import (
    TfResize,
)
from gradwire.v1.torch_pb2 import (
    TorchInterpolate,
)

__all__ = [
    "AttributeInfo",
    "Chunk",
    "DataType",
    "DmlAxisDirection",
    "DmlInterpolationMode",
    "DmlNearestRounding",
    "DmlOffsetConvention",
    "DmlResample",
    "DmlResample2",
    "Error",
    "ErrorReason",
    "EvaluateManyRequest",
    "EvaluateManyResponse",
    "EvaluateRequest",
    "EvaluateResponse",
    "EvaluateSharedRequest",
    "EvaluateSharedResponse",
    "EvaluateStreamRequest",
    "EvaluateStreamResponse",
    "GetServerInfoRequest",
    "GetServerInfoResponse",
    "GradientServiceServicer",
    "GradientServiceStub",
    "Interpolate",
    "JaxResize",
    "Limits",
    "ListOperatorsRequest",
    "ListOperatorsResponse",
    "OnnxResize",
    "Open",
    "Opened",
    "OpenvinoInterpolate",
    "Operator",
    "OperatorInfo",
    "Options",
    "SharedRange",
    "TensorDescriptor",
    "TfResize",
    "TorchInterpolate",
    "add_GradientServiceServicer_to_server",
]
