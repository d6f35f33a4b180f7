"""Random calls of every operator: attributes of every kind, axes and padding of any length."""

from __future__ import annotations

import dataclasses
import math
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire import ops
from gradwire.errors import InvalidRequestError
from gradwire.ops._base import Choice, rule_of
from gradwire_server.engine import EvaluationRequest, TensorSpec
from support.oracles.dialect_oracles import Shape

# Each forward: shapes of one long axis L among others, what names the sizes, and of which axes.
_FORWARDS: dict[str, tuple[str, str, slice]] = {
    "dml_resample": ("L", "", slice(0)),
    "interpolate": ("11L", "sizes", slice(2, None)),
    "torch_interpolate": ("11L11", "size", slice(2, None)),
    "onnx_resize": ("L", "sizes", slice(None)),
    "tf_resize": ("1L11", "size", slice(1, 3)),
    "jax_resize": ("L", "shape", slice(None)),
    "openvino_interpolate": ("L1", "sizes", slice(None)),
}
_FIXED: dict[str, Any] = {
    "data_format": "NCX",
    "keep_aspect_ratio_policy": "stretch",
    "shape_calculation_mode": "sizes",
}


def request_of(
    operator: ops.Operator, source: Shape, result: Shape, dtype: npt.DTypeLike
) -> EvaluationRequest:
    """Return what the engine is asked, of an input that is one element on the wire.

    The shapes are those of the operator as called.
    """
    kind = np.dtype(dtype)
    given = TensorSpec(kind, source, (0,) * len(source))
    return EvaluationRequest(operator.name, operator, given, TensorSpec.packed(kind, result))


def random_call(chance: Random, *, longest: int) -> EvaluationRequest:
    """Draw an operator, its attributes and its shapes.

    longest  bound of an axis and of its padding; short ones are as likely
    """
    forward = chance.choice(list(_FORWARDS))
    gradient = chance.random() < 1 / 2
    kind = ops.OPERATORS[ops.OPERATORS[forward].counterpart if gradient else forward]
    dtype = chance.choice([np.float32, np.float32, np.float64])
    while True:
        words = _words(chance, kind)
        lengths = [math.ceil(math.exp(chance.uniform(0, math.log(longest)))) for _ in range(4)]
        # PyTorch's modes have axes of their own.
        rank = {"linear": 3, "trilinear": 5}.get(words.get("mode", ""), 4)
        shape, name, sized = _FORWARDS[forward]
        sides = shape[:rank] if forward == "torch_interpolate" else shape
        source, result = (
            tuple(length if side == "L" else 1 for side in sides) for length in lengths[:2]
        )
        attributes = words | _numbers(chance, forward, words, lengths[2:])
        if name:
            axes = attributes.get("axes", result)
            attributes[name] = result[sized][: len(axes)]
        try:
            operator = kind(**attributes)
        except InvalidRequestError:
            continue  # words that no call has together
        shapes = (result, source) if gradient else (source, result)
        return request_of(operator, *shapes, dtype)


def _words(chance: Random, kind: type[ops.Operator]) -> dict[str, Any]:
    words: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        rule = rule_of(field)
        if isinstance(rule, Choice):
            words[field.name] = _FIXED.get(field.name) or chance.choice(rule.allowed)
        elif rule.type_name == "bool":
            words[field.name] = chance.random() < 1 / 2
    return words


def _numbers(
    chance: Random, forward: str, words: dict[str, Any], pads: list[int]
) -> dict[str, Any]:
    """Draw numbers where the operator has some."""
    if forward == "dml_resample" and chance.random() < 1 / 2:
        scales = (math.exp(chance.uniform(-9, 9)),)
        return {"scales": scales, "input_pixel_offsets": (chance.uniform(-9, 9),)}
    if forward == "openvino_interpolate":
        axes = (0, 1) if words["mode"].endswith(("_pillow", "_onnx")) else (0,)
        padded = {
            side: (length,)
            for side, length in zip(("pads_begin", "pads_end"), pads, strict=True)
            if chance.random() < 1 / 2
        }
        return {"axes": axes, **padded}
    crops = words.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    return {"roi": (chance.uniform(-9, 9), chance.uniform(-9, 9))} if crops else {}
