"""OpenVINO's Interpolate-11 along one axis, read off by one-hot images.

    PYTHONPATH=tests python -m support.oracles.live_openvino

writes tests/data/openvino_tables.npz with OpenVINO 2026.4.1.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gradwire import ops
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix

STORED = "openvino_tables.npz"
TRANSFORMATIONS = (
    "half_pixel",
    "pytorch_half_pixel",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "align_corners",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
MODES = ("nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow", "bicubic_pillow")
NAMES = (
    "mode",
    "shape_calculation_mode",
    "coordinate_transformation_mode",
    "nearest_mode",
    "antialias",
    "cube_coeff",
)
# Modes that take two axes: the other one has one element.
TWO_AXES = {"linear_onnx", "bilinear_pillow", "bicubic_pillow"}


def cases(count: int, *, seed: int = 9) -> list[AxisCase]:
    """Draw cases of every mode; lengths are up to 60, and padding up to 3."""
    generator = np.random.default_rng(seed)
    return [_case(generator, MODES[i % len(MODES)]) for i in range(count)]


def _case(generator: np.random.Generator, mode: str) -> AxisCase:
    attributes: dict[str, Any] = {
        "mode": mode,
        "axes": [2, 3] if mode in TWO_AXES else [2],
        "coordinate_transformation_mode": str(generator.choice(TRANSFORMATIONS)),
        "nearest_mode": str(generator.choice(ROUNDINGS)),
        "antialias": bool(generator.integers(2)),
        "cube_coeff": float(generator.choice([-0.75, -0.5, -0.6])),
    }
    begin, end = generator.integers(0, 4, 2).tolist() if generator.random() < 0.3 else (0, 0)
    attributes |= {"pads_begin": [0, 0, begin], "pads_end": [0, 0, end]}
    inputs, outputs = axis_tables.sizes(generator, largest=60)
    length, others = inputs + begin + end, [1] * (mode in TWO_AXES)
    if generator.integers(2):
        return AxisCase({**attributes, "sizes": [outputs, *others]}, inputs, outputs)
    scale = float(np.float32(max(np.exp(generator.uniform(-1.5, 1.5)), 1 / length)))
    attributes |= {"shape_calculation_mode": "scales", "scales": [scale, *others]}
    told = int(np.float32(length) * (np.float32(scale) + np.float32(1e-6)))
    return AxisCase(attributes, inputs, told)


def _node(opset: Any, operator: ops.OpenvinoInterpolate, shape: tuple[int, ...]) -> Any:
    """Return a parameter, the operation on it, and its two further inputs."""
    scales = operator.shape_calculation_mode == "scales"
    told = np.array(operator.scales, np.float32) if scales else np.array(operator.sizes, np.int64)
    axes = np.array(operator.axes or range(len(shape)), np.int64)
    attributes = {name: getattr(operator, name) for name in NAMES}
    for name in ("pads_begin", "pads_end"):
        given = list(getattr(operator, name))
        attributes[name] = given + [0] * (len(shape) - len(given))
    image = opset.parameter(shape, np.float32)
    node = opset.interpolate(image, opset.constant(told), axes=opset.constant(axes), **attributes)
    return image, node, (told, axes)


def reference(operator: ops.OpenvinoInterpolate, x: Any) -> Any:
    openvino = importlib.import_module("openvino")
    opset = importlib.import_module("openvino.opset11")
    _, node, others = _node(opset, operator, x.shape)
    result = openvino.Tensor(openvino.Type.f32, node.get_output_shape(0))
    given = [openvino.Tensor(np.ascontiguousarray(each)) for each in (x, *others)]
    assert node.evaluate([result], given)
    return result.data.copy()


def plugin(operator: ops.OpenvinoInterpolate, x: Any) -> Any:
    openvino = importlib.import_module("openvino")
    opset = importlib.import_module("openvino.opset11")
    image, node, _ = _node(opset, operator, x.shape)
    model = openvino.Model([node], [image])
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(np.ascontiguousarray(x))[0].copy()


def table(implementation: Any, case: AxisCase) -> Matrix:
    """Return what an implementation makes of one-hot images, along axis 2 of 4."""
    x = np.eye(case.inputs, dtype=np.float32)[:, np.newaxis, :, np.newaxis]
    result = implementation(ops.OpenvinoInterpolate(**case.attributes), x)
    matrix: Matrix = result[:, 0, :, 0].T.astype(np.float64)
    return matrix


def main() -> None:
    version = importlib.import_module("openvino").__version__
    tables = [(case, table(reference, case)) for case in cases(90, seed=1)]
    axis_tables.save(STORED, {"openvino": version}, tables)


if __name__ == "__main__":
    main()
