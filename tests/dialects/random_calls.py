"""Random calls of every operator: attributes of every kind, axes and padding of any length."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

import numpy as np

from gradwire import ops
from gradwire.ops import dml, jax, onednn, onnx, openvino, tensorflow, torch
from gradwire_server.engine import EvaluationRequest, TensorSpec

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RandomCall:
    """One call; the shapes are those of the operator as called."""

    operator: ops.Operator
    source: Shape
    result: Shape
    dtype: np.dtype[Any]

    def request(self) -> EvaluationRequest:
        """Return what the engine is asked, of an input that is one element on the wire."""
        given = TensorSpec(self.dtype, self.source, (0,) * len(self.source))
        result = TensorSpec.packed(self.dtype, self.result)
        return EvaluationRequest(self.operator.name, self.operator, given, result)


def random_call(chance: Random, *, longest: int) -> RandomCall:
    """Draw an operator, its attributes and its shapes.

    longest  bound of an axis and of its padding; short ones are as likely
    """
    forward, make = chance.choice(_FRAMEWORKS)
    attributes, source, result = make(chance, lambda: _length(chance, longest))
    gradient = chance.random() < 1 / 2
    name = ops.OPERATORS[forward].counterpart if gradient else forward
    operator = ops.OPERATORS[name](**attributes)
    shapes = (result, source) if gradient else (source, result)
    dtype = np.dtype(chance.choice([np.float32, np.float32, np.float64]))
    return RandomCall(operator, *shapes, dtype)


def _length(chance: Random, longest: int) -> int:
    return math.ceil(math.exp(chance.uniform(0, math.log(longest))))


Lengths = Callable[[], int]
Made = tuple[dict[str, Any], Shape, Shape]


def _dml(chance: Random, lengths: Lengths) -> Made:
    sides = (lengths(),), (lengths(),)
    attributes: dict[str, Any] = {
        "interpolation_mode": chance.choice(get_args(dml.InterpolationMode)),
        "nearest_rounding": chance.choice(get_args(dml.NearestRounding)),
    }
    if chance.random() < 1 / 2:
        attributes["scales"] = (math.exp(chance.uniform(-9, 9)),)
        attributes["input_pixel_offsets"] = (chance.uniform(-9, 9),)
    return attributes, *sides


def _onednn(chance: Random, lengths: Lengths) -> Made:
    result = (1, 1, lengths())
    attributes = {
        "mode": chance.choice(("nearest", "linear")),
        "coordinate_transformation_mode": chance.choice(
            get_args(onednn.CoordinateTransformationMode)
        ),
        "sizes": result[2:],
        "data_format": "NCX",
    }
    return attributes, (1, 1, lengths()), result


def _torch(chance: Random, lengths: Lengths) -> Made:
    mode = chance.choice(get_args(torch.Mode))
    spatial = {"linear": 1, "trilinear": 3}.get(mode, 2)
    source = (1, 1, lengths(), *[1] * (spatial - 1))
    result = (1, 1, lengths(), *[1] * (spatial - 1))
    attributes: dict[str, Any] = {"mode": mode, "size": result[2:]}
    if mode in {"bilinear", "bicubic", "lanczos"}:
        attributes["antialias"] = mode == "lanczos" or chance.random() < 2 / 3
    return attributes, source, result


def _onnx(chance: Random, lengths: Lengths) -> Made:
    source, result = (lengths(),), (lengths(),)
    attributes: dict[str, Any] = {
        "mode": chance.choice(get_args(onnx.Mode)),
        "coordinate_transformation_mode": chance.choice(
            get_args(onnx.CoordinateTransformationMode)
        ),
        "nearest_mode": chance.choice(get_args(onnx.NearestMode)),
        "arithmetic": chance.choice(get_args(onnx.Arithmetic)),
        "sizes": result,
    }
    attributes["antialias"] = attributes["mode"] != "nearest" and chance.random() < 2 / 3
    # ONNX Runtime takes it with no other.
    excludes = attributes["mode"] == "cubic" or attributes["antialias"]
    attributes["exclude_outside"] = excludes and chance.random() < 1 / 2
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        attributes["roi"] = (chance.uniform(-9, 9), chance.uniform(-9, 9))
    return attributes, source, result


def _tensorflow(chance: Random, lengths: Lengths) -> Made:
    result = (1, lengths(), 1, 1)
    attributes: dict[str, Any] = {
        "kind": chance.choice(get_args(tensorflow.Kind)),
        "size": result[1:3],
        "half_pixel_centers": chance.random() < 1 / 2,
    }
    return attributes, (1, lengths(), 1, 1), result


def _jax(chance: Random, lengths: Lengths) -> Made:
    result = (lengths(),)
    attributes = {
        "method": chance.choice(get_args(jax.Method)),
        "shape": result,
        "antialias": chance.random() < 2 / 3,
    }
    return attributes, (lengths(),), result


def _openvino(chance: Random, lengths: Lengths) -> Made:
    mode = chance.choice(get_args(openvino.Mode))
    axes = (0, 1) if mode.endswith("_pillow") else (0,)
    source = (lengths(), *[1] * len(axes[1:]))
    result = (lengths(), *[1] * len(axes[1:]))
    if mode == "linear_onnx":
        source, result, axes = (*source, 1), (*result, 1), (0, 1)
    attributes: dict[str, Any] = {
        "mode": mode,
        "sizes": tuple(result[axis] for axis in axes),
        "axes": axes,
        "coordinate_transformation_mode": chance.choice(
            get_args(openvino.CoordinateTransformationMode)
        ),
        "nearest_mode": chance.choice(get_args(openvino.NearestMode)),
        "antialias": chance.random() < 2 / 3,
    }
    for side in ("pads_begin", "pads_end"):
        if chance.random() < 1 / 2:
            attributes[side] = (lengths(),)
    return attributes, source, result


_FRAMEWORKS: list[tuple[str, Callable[[Random, Lengths], Made]]] = [
    ("dml_resample", _dml),
    ("interpolate", _onednn),
    ("torch_interpolate", _torch),
    ("onnx_resize", _onnx),
    ("tf_resize", _tensorflow),
    ("jax_resize", _jax),
    ("openvino_interpolate", _openvino),
]
