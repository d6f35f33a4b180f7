"""Operators as frozen dataclasses with their frameworks' attributes.

    from gradwire import ops

    ops.InterpolateBackward(mode="bilinear", sizes=(112, 112), data_format="NCX")
    ops.DmlResampleGrad(interpolation_mode="nearest", scales=(0.5, 1.5))

An invalid value raises gradwire.InvalidRequestError at once, with the server's message.
"""

from __future__ import annotations

from gradwire.ops._base import Operator
from gradwire.ops._messages import OPERATORS, adjoint, describe, from_message, to_message
from gradwire.ops.dml import DmlResample, DmlResample2, DmlResampleGrad, DmlResampleGrad1
from gradwire.ops.jax import JaxResize, JaxResizeGrad
from gradwire.ops.onednn import Interpolate, InterpolateBackward
from gradwire.ops.onnx import OnnxResize, OnnxResizeGrad
from gradwire.ops.openvino import OpenvinoInterpolate, OpenvinoInterpolateGrad
from gradwire.ops.tensorflow import TfResize, TfResizeGrad
from gradwire.ops.torch import TorchInterpolate, TorchUpsampleBackward

__all__ = [
    "OPERATORS",
    "DmlResample",
    "DmlResample2",
    "DmlResampleGrad",
    "DmlResampleGrad1",
    "Interpolate",
    "InterpolateBackward",
    "JaxResize",
    "JaxResizeGrad",
    "OnnxResize",
    "OnnxResizeGrad",
    "OpenvinoInterpolate",
    "OpenvinoInterpolateGrad",
    "Operator",
    "TfResize",
    "TfResizeGrad",
    "TorchInterpolate",
    "TorchUpsampleBackward",
    "adjoint",
    "describe",
    "from_message",
    "to_message",
]
