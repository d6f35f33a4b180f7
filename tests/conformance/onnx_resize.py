"""ONNX's Resize: published node tests, the reference implementation, ONNX Runtime.

Attributes are keyword arguments of ops.OnnxResize.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from conformance.rows import UP_TO_64, Numbers, Section, Tally
from gradwire import ops
from gradwire.ops.onnx import CoordinateTransformationMode, Mode, NearestMode
from gradwire_server import dialects
from support.oracles.dialect_oracles import (
    AxisCase,
    OnnxAxis,
    Tensor,
    elements_read,
    evaluate,
    onnx_coordinate,
)

Attributes = dict[str, Any]

_TRANSFORMATIONS = get_args(CoordinateTransformationMode)
# That of opset 10, "simple", is in none since.
_NEAREST_MODES = tuple(mode for mode in get_args(NearestMode) if mode != "simple")
_INPUTS = {"roi": np.float32, "scales": np.float32, "sizes": np.int64}
_FLAGS = ("antialias", "exclude_outside")
_NEAR = 1e-9
# The reference evaluates each output by itself, so that all seven would take minutes.
_BY_REFERENCE = ("half_pixel", "asymmetric")


@dataclass(frozen=True, slots=True)
class NodeCase:
    """One of ONNX's published node tests of Resize, all float32."""

    name: str
    attributes: Attributes
    x: Tensor
    y: Tensor


def node_cases() -> list[NodeCase]:
    loader = importlib.import_module("onnx.backend.test")
    cases: list[NodeCase] = []
    with warnings.catch_warnings():
        # It makes the cases of all operators, and some of those overflow.
        warnings.simplefilter("ignore", RuntimeWarning)
        models = loader.loader.load_model_tests(kind="node")
    for case in models:
        if case.name.startswith("test_resize"):
            (node,) = case.model.graph.node
            given, (y,) = case.data_sets[0]
            tensors = dict(zip((name for name in node.input if name), given, strict=True))
            x, *others = (tensors.get(name) for name in node.input)
            attributes = {each.name: _plain(each) for each in node.attribute}
            for name, value in zip(_INPUTS, others, strict=False):
                if value is not None and len(value):
                    attributes[name] = value.tolist()
            cases.append(NodeCase(case.name, attributes, np.asarray(x), np.asarray(y)))
    assert len(cases) >= 39
    return cases


def _plain(attribute: Any) -> Any:
    value = importlib.import_module("onnx").helper.get_attribute_value(attribute)
    if attribute.name in _FLAGS:
        return bool(value)
    return value.decode() if isinstance(value, bytes) else value


def reference(attributes: Attributes, x: Tensor) -> Tensor:
    """Evaluate Resize by ONNX's reference implementation, its attributes in float64.

    ReferenceEvaluator would hand them over in float32, and so compute in float32 what they enter.
    """
    module = importlib.import_module("onnx.reference.ops.op_resize")
    given = {
        "antialias": False,
        "axes": None,
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": False,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": "stretch",
        "mode": "nearest",
        "nearest_mode": "round_prefer_floor",
        **dict.fromkeys(_INPUTS),
        **attributes,
    }
    for name, kind in {**_INPUTS, "roi": np.float64}.items():
        given[name] = None if given[name] is None else np.array(given[name], kind)
    (y,) = module.Resize._run(None, x, **given)  # noqa: SLF001 - its caller makes attributes float32
    return np.asarray(y)


def _gradient(case: NodeCase, g: Tensor) -> Tensor:
    """Transpose the reference: <f(e) - f(0), g> for every unit tensor e."""
    outside = reference(case.attributes, np.zeros(case.x.shape))
    result = np.zeros(case.x.shape)
    for element in np.ndindex(case.x.shape):
        unit = np.zeros(case.x.shape)
        unit[element] = 1
        result[element] = np.sum((reference(case.attributes, unit) - outside) * g)
    return result


def _gradients() -> Iterator[tuple[NodeCase, Tensor, Tensor]]:
    """Return every case with a gradient of y and the gradient of x, which that makes."""
    rng = np.random.default_rng(20240229)
    for case in node_cases():
        g = rng.integers(-9, 10, case.y.shape).astype(np.float64)
        yield case, g, _gradient(case, g)


def runtime(attributes: Attributes, x: Tensor) -> Tensor:
    """Evaluate a model of one Resize."""
    onnx = importlib.import_module("onnx")
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    constants = {name: attributes[name] for name in _INPUTS if name in attributes}
    names = [name if name in constants else "" for name in _INPUTS]
    while not names[-1]:
        names.pop()
    others = {k: int(v) if k in _FLAGS else v for k, v in attributes.items() if k not in constants}
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", *names], ["y"], **others)],
        "resize",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(np.array(v, _INPUTS[n]), n) for n, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 19)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return np.asarray(session(model).run(None, {"x": x})[0])


def _runtime_reads(attributes: Attributes) -> Callable[[int, int], Tensor]:
    """Return what `nearest` reads in ONNX Runtime, by two lengths; -1 where that is outside."""
    onnx = importlib.import_module("onnx")
    given = ", ".join(f'{name}="{value}"' for name, value in attributes.items())
    text = f"""<ir_version: 8, opset_import: ["": 19]>
        g (float[N] x, float[2] roi, int64[1] sizes) => (float[M] y) {{
            y = Resize<mode="nearest", extrapolation_value=-1.0, {given}>(x, roi, , sizes)
        }}"""
    made = session(onnx.parser.parse_model(text))
    roi = np.array([0, 1], np.float32)

    def read(inputs: int, outputs: int) -> Tensor:
        x, sizes = np.arange(inputs, dtype=np.float32), np.array([outputs])
        return np.asarray(made.run(None, {"x": x, "roi": roi, "sizes": sizes})[0])

    return read


def session(model: Any) -> Any:
    onnxruntime = importlib.import_module("onnxruntime")
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


def evaluated(x: Tensor, attributes: Attributes, arithmetic: str) -> Tensor:
    """Evaluate Resize here."""
    given: Attributes = {**attributes, "arithmetic": arithmetic}
    operator = ops.OnnxResize(**given)
    return evaluate(operator, x, dialects.output_shape("onnx_resize", operator, x.shape) or ())


def _random_call(seed: int) -> tuple[int, Attributes]:
    """Draw a length and a call that resizes axis 3 of tensors of shape (n, 1, rows, length)."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 26))
    drawn: Attributes = {
        "mode": str(rng.choice(get_args(Mode))),
        "coordinate_transformation_mode": str(rng.choice(_TRANSFORMATIONS)),
        "axes": [3],
    }
    if drawn["mode"] == "nearest":
        drawn["nearest_mode"] = str(rng.choice(_NEAREST_MODES))
    else:
        drawn["antialias"] = bool(rng.integers(2))
    if drawn["mode"] == "cubic":
        drawn["cubic_coeff_a"] = float(np.float32(rng.choice([-0.75, -0.5, -0.6, 0.3])))
    if drawn["mode"] == "cubic" or drawn.get("antialias"):
        drawn["exclude_outside"] = bool(rng.integers(2))
    if rng.integers(3) == 0:
        scale = rng.choice([rng.uniform(0.05, 4), rng.integers(1, 30) / rng.integers(1, 30)])
        drawn["scales"] = [float(np.float32(scale if length * scale >= 1.01 else 1.5))]
    else:
        policies = ["stretch", "not_larger", "not_smaller"]
        drawn["sizes"] = [int(rng.integers(1, 60))]
        drawn["keep_aspect_ratio_policy"] = str(rng.choice(policies))
    if drawn["coordinate_transformation_mode"] == "tf_crop_and_resize":
        start, end = rng.choice([0, 0.25, rng.uniform(-0.3, 1.3)]), rng.uniform(-0.3, 1.3)
        end = rng.choice([1, 0.75, end])
        drawn["roi"] = [float(np.float32(start)), float(np.float32(end))]
        drawn["extrapolation_value"] = float(rng.choice([0, 10, -2.5]))
    return length, drawn


def _impulses(length: int, dtype: npt.DTypeLike, *, rows: int = 3) -> Tensor:
    """Return as many tensors as axis 3 has elements, each with a 1 at one, in the middle row."""
    x = np.zeros((length, 1, rows, length), dtype)
    x[:, 0, rows // 2] = np.eye(length)
    return x


def _explained(attributes: Attributes, length: int, difference: Numbers) -> bool:
    """Tell whether all that differs is beside a whole or half coordinate, or one output's."""
    outputs = len(difference)
    rule = attributes["coordinate_transformation_mode"]
    scale = np.float64(attributes["scales"][-1] if "scales" in attributes else outputs / length)
    start, end = attributes.get("roi", (0, 1))
    axis = OnnxAxis(length, outputs, scale, scale * length, (start, end))
    differ = np.flatnonzero(difference > 1e-11).tolist()
    twice = [2 * float(onnx_coordinate(axis, rule, index)) for index in differ]
    single = rule == "pytorch_half_pixel" and outputs == 1
    return single or all(abs(each - round(each)) < _NEAR for each in twice)


def _add_random(tally: Tally, seed: int) -> None:
    """Compare a random call with ONNX Runtime and with the reference."""
    length, attributes = _random_call(seed)
    words = f"{attributes['mode']}, {attributes['coordinate_transformation_mode']}"
    # Rows, whose scale is 1, get cubic weights of nearly zero in ONNX Runtime. They do not show in
    # the middle one of three, nor in a single one where the others are left out.
    rows = 1 if attributes.get("exclude_outside") else 3
    x = _impulses(length, np.float32, rows=rows)
    result, expected = (
        each[:, :, rows // 2]
        for each in (evaluated(x, attributes, "float32"), runtime(attributes, x))
    )
    tally.add(("onnxruntime: weights", "onnx_resize, FLOAT32", words, "float32"), result, expected)
    if attributes["coordinate_transformation_mode"] == "tf_half_pixel_for_nn":
        return  # not of the opsets the reference has
    x = _impulses(length, np.float64)
    ours, theirs = evaluated(x, attributes, "spec_float64"), reference(attributes, x)
    tally.add(
        ("onnx: weights of the reference", "onnx_resize", words, "float64"),
        ours,
        theirs,
        allowed=1e-11,
        deviates=lambda: _explained(attributes, length, np.abs(ours - theirs).max(axis=(0, 1, 2))),
    )


def _add_nearest(tally: Tally, attributes: Attributes) -> None:
    """Compare what `nearest` reads in ONNX Runtime and, by a few rules, in the reference."""
    rule, rounding = attributes["coordinate_transformation_mode"], attributes["nearest_mode"]
    words = f"nearest, {rule}, {rounding}, {UP_TO_64}"
    read = _runtime_reads(attributes)
    for inputs, outputs in tally.lengths():
        given: Attributes = {**attributes, "mode": "nearest", "sizes": (outputs,)}
        case = AxisCase(given, inputs, outputs)
        key = ("onnxruntime: elements read", "onnx_resize, FLOAT32", words, "float32")
        operator = ops.OnnxResize(**given, arithmetic="float32")
        tally.add(key, elements_read(operator, case), read(inputs, outputs))
        if rule in _BY_REFERENCE:
            ours = elements_read(ops.OnnxResize(**given), case)
            theirs = reference(given, np.arange(inputs, dtype=np.float64))
            key = ("onnx: elements the reference reads", "onnx_resize", words, "float64")
            deviates = partial(_explained, given, inputs, np.abs(ours - theirs))
            tally.add(key, ours, theirs, deviates=deviates)


def _compare(tally: Tally) -> None:
    for case, g, expected in _gradients():
        x, mode = case.x.astype(np.float64), case.attributes.get("mode", "nearest")
        forward = ops.OnnxResize(**case.attributes)
        allowed = 0 if mode == "nearest" else 1e-5 + 1e-6 * np.abs(case.y)
        key = ("onnx: published node tests", "onnx_resize", mode, "float32")
        tally.add(key, evaluate(forward, x, case.y.shape), case.y, allowed=allowed)
        gradient = evaluate(ops.OnnxResizeGrad(**case.attributes), g, x.shape)
        key = ("onnx: transposed reference", "onnx_resize_grad", mode, "float64")
        tally.add(key, gradient, expected, allowed=1e-12 * (1 + np.abs(expected)))
    for seed in range(1500):
        _add_random(tally, seed)
    rows = (row for row in tally.rows() if row.peer == "onnx: weights of the reference")
    assert sum(row.cases for row in rows) > 1500 * 3 // 4
    for rule, rounding in itertools.product(_TRANSFORMATIONS, _NEAREST_MODES):
        _add_nearest(tally, {"coordinate_transformation_mode": rule, "nearest_mode": rounding})


SECTION = Section.of("ONNX", _compare)
