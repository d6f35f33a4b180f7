"""OpenVINO's Interpolate-11 along one axis: the reference implementation and the CPU plugin."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np

from conformance.rows import UP_TO_64, Section, Tally
from gradwire import ops
from gradwire.ops import openvino
from support.oracles.dialect_oracles import (
    AxisCase,
    Matrix,
    axis_matrix,
    draw_sizes,
    elements_read,
    save_tables,
)

STORED = "openvino_tables.npz"
MODES = get_args(openvino.Mode)
_TRANSFORMATIONS = get_args(openvino.CoordinateTransformationMode)
_ROUNDINGS = get_args(openvino.NearestMode)
_NAMES = (
    *("mode", "shape_calculation_mode", "coordinate_transformation_mode", "nearest_mode"),
    *("antialias", "cube_coeff"),
)
# Modes that take two axes: the other one has one element.
_TWO_AXES = {"linear_onnx", "bilinear_pillow", "bicubic_pillow"}
_OPERATOR = "openvino_interpolate"
# The plugin multiplies by the reciprocal of scale: coordinates up to 60 move by units of 2**-18.
_PLUGIN = 2.0**-15
_IGNORED: dict[str, dict[str, Any]] = {
    "linear": {"antialias": False},
    "bicubic_pillow": {"cube_coeff": -0.5},
}


def _cases(count: int, *, seed: int = 9) -> list[AxisCase]:
    """Draw cases of every mode; lengths are up to 60, and padding up to 3."""
    generator = np.random.default_rng(seed)
    return [_case(generator, MODES[i % len(MODES)]) for i in range(count)]


def _case(generator: np.random.Generator, mode: str) -> AxisCase:
    attributes: dict[str, Any] = {
        "mode": mode,
        "axes": [2, 3] if mode in _TWO_AXES else [2],
        "coordinate_transformation_mode": str(generator.choice(_TRANSFORMATIONS)),
        "nearest_mode": str(generator.choice(_ROUNDINGS)),
        "antialias": bool(generator.integers(2)),
        "cube_coeff": float(generator.choice([-0.75, -0.5, -0.6])),
    }
    begin, end = generator.integers(0, 4, 2).tolist() if generator.random() < 0.3 else (0, 0)
    attributes |= {"pads_begin": [0, 0, begin], "pads_end": [0, 0, end]}
    inputs, outputs = draw_sizes(generator, largest=60)
    length, others = inputs + begin + end, [1] * (mode in _TWO_AXES)
    if generator.integers(2):
        return AxisCase({**attributes, "sizes": [outputs, *others]}, inputs, outputs)
    scale = float(np.float32(max(np.exp(generator.uniform(-1.5, 1.5)), 1 / length)))
    attributes |= {"shape_calculation_mode": "scales", "scales": [scale, *others]}
    told = int(np.float32(length) * (np.float32(scale) + np.float32(1e-6)))
    return AxisCase(attributes, inputs, told)


def _node(operator: ops.OpenvinoInterpolate, shape: tuple[int, ...]) -> Any:
    """Return a parameter, the operation on it, and its two further inputs."""
    opset = importlib.import_module("openvino.opset11")
    scales = operator.shape_calculation_mode == "scales"
    told = np.array(operator.scales, np.float32) if scales else np.array(operator.sizes, np.int64)
    axes = np.array(operator.axes or range(len(shape)), np.int64)
    attributes = {name: getattr(operator, name) for name in _NAMES}
    for name in ("pads_begin", "pads_end"):
        given = list(getattr(operator, name))
        attributes[name] = given + [0] * (len(shape) - len(given))
    image = opset.parameter(shape, np.float32)
    node = opset.interpolate(image, opset.constant(told), axes=opset.constant(axes), **attributes)
    return image, node, (told, axes)


def reference(operator: ops.OpenvinoInterpolate, x: Any) -> Any:
    runtime = importlib.import_module("openvino")
    _, node, others = _node(operator, x.shape)
    result = runtime.Tensor(runtime.Type.f32, node.get_output_shape(0))
    given = [runtime.Tensor(np.ascontiguousarray(each)) for each in (x, *others)]
    assert node.evaluate([result], given)
    return result.data.copy()


def plugin(operator: ops.OpenvinoInterpolate, x: Any) -> Any:
    runtime = importlib.import_module("openvino")
    image, node, _ = _node(operator, x.shape)
    model = runtime.Model([node], [image])
    compiled = runtime.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(np.ascontiguousarray(x))[0].copy()


def _table(implementation: Any, case: AxisCase) -> Matrix:
    """Return what an implementation makes of one-hot images, along axis 2 of 4."""
    x = np.eye(case.inputs, dtype=np.float32)[:, np.newaxis, :, np.newaxis]
    result = implementation(ops.OpenvinoInterpolate(**case.attributes), x)
    matrix: Matrix = result[:, 0, :, 0].T.astype(np.float64)
    return matrix


def table_here(case: AxisCase) -> Matrix:
    operator = ops.OpenvinoInterpolate(**case.attributes)
    ours = axis_matrix(operator, case, rank=4, axis=2, dtype=np.float32)
    return ours.astype(np.float32).astype(np.float64)


def _deviates(case: AxisCase, theirs: Matrix) -> bool:
    """Tell whether the plugin has the table without what it ignores."""
    known = _IGNORED.get(case.attributes["mode"])
    if known is None:
        return False
    without = table_here(replace(case, attributes=case.attributes | known))
    return bool(np.abs(without - theirs).max() <= _PLUGIN)


def _compare(tally: Tally) -> None:
    for case in _cases(3000):
        words = case.attributes["mode"]
        if not words.endswith("pillow"):
            words += f", {case.attributes['coordinate_transformation_mode']}"
        key = ("openvino: weights of the reference", _OPERATOR, words, "float32")
        tally.add(key, table_here(case), _table(reference, case))
    for rule, rounding in itertools.product(_TRANSFORMATIONS, _ROUNDINGS):
        attributes = {"coordinate_transformation_mode": rule, "nearest_mode": rounding}
        words = f"nearest, {rule}, {rounding}, {UP_TO_64}"
        key = ("openvino: elements the reference reads", _OPERATOR, words, "float32")
        for inputs, outputs in tally.lengths():
            operator = ops.OpenvinoInterpolate(mode="nearest", sizes=(outputs,), **attributes)
            read = reference(operator, np.arange(inputs, dtype=np.float32))
            case = AxisCase(attributes, inputs, outputs)
            tally.add(key, elements_read(operator, case), read)
    for case in _cases(300):
        theirs = _table(plugin, case)
        key = ("openvino: weights of the CPU plugin", _OPERATOR, case.attributes["mode"], "float32")
        deviates = partial(_deviates, case, theirs)
        tally.add(key, table_here(case), theirs, allowed=_PLUGIN, deviates=deviates)


SECTION = Section(
    "OpenVINO",
    ("openvino",),
    "dialects/openvino.md",
    "Weights are read off one-hot images of up to 60 elements with padding up to 3. Those of the"
    " reference implementation must have equal bits, those of the CPU plugin be within 2**-15."
    " What `nearest` reads in the reference must be equal at all pairs of lengths up to 64 by each"
    " of the five coordinates and five roundings."
    " OpenVINO has no gradients: `openvino_interpolate_grad` is the transpose of these tables.",
    _compare,
)

if __name__ == "__main__":
    stored = [(case, _table(reference, case)) for case in _cases(90, seed=1)]
    release = importlib.import_module("openvino").__version__
    save_tables(STORED, {"openvino": release}, stored)
