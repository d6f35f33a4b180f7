"""ONNX's Resize outside of here: its published node tests, its reference, ONNX Runtime, its opsets.

Attributes are keyword arguments of ops.OnnxResize.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from gradwire.ops.onnx import CoordinateTransformationMode, Mode, NearestMode
from support.oracles.dialect_oracles import Tensor

Attributes = dict[str, Any]

MODES = get_args(Mode)
TRANSFORMATIONS = get_args(CoordinateTransformationMode)
# That of opset 10, "simple", is in none since.
NEAREST_MODES = tuple(mode for mode in get_args(NearestMode) if mode != "simple")
INPUTS = {"roi": np.float32, "scales": np.float32, "sizes": np.int64}
FLAGS = ("antialias", "exclude_outside")


@dataclass(frozen=True, slots=True)
class NodeCase:
    """One of ONNX's published node tests of Resize, all float32."""

    name: str
    attributes: Attributes
    x: Tensor
    y: Tensor


def installed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"compares with {name} where it is installed")


def node_cases() -> list[NodeCase]:
    onnx, loader = importlib.import_module("onnx"), importlib.import_module("onnx.backend.test")
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
            attributes = {each.name: _plain(onnx, each) for each in node.attribute}
            for name, value in zip(INPUTS, others, strict=False):
                if value is not None and len(value):
                    attributes[name] = value.tolist()
            cases.append(NodeCase(case.name, attributes, np.asarray(x), np.asarray(y)))
    return cases


def _plain(onnx: Any, attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name in FLAGS:
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
        **dict.fromkeys(INPUTS),
        **attributes,
    }
    for name, kind in {**INPUTS, "roi": np.float64}.items():
        given[name] = None if given[name] is None else np.array(given[name], kind)
    (y,) = module.Resize._run(None, x, **given)  # noqa: SLF001 - its caller makes attributes float32
    return np.asarray(y)


def model(attributes: Attributes, x: Tensor, *, opset: int = 19) -> Any:
    """Make a model of one Resize; opset 10 has its scales as the second input."""
    onnx = importlib.import_module("onnx")
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    constants = {name: attributes[name] for name in INPUTS if name in attributes}
    names = ["scales"] if opset == 10 else [n if n in constants else "" for n in INPUTS]
    while not names[-1]:
        names.pop()
    others = {k: int(v) if k in FLAGS else v for k, v in attributes.items() if k not in constants}
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", *names], ["y"], **others)],
        "resize",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(np.array(v, INPUTS[n]), n) for n, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def runtime(attributes: Attributes, x: Tensor, *, opset: int = 19) -> Tensor:
    return np.asarray(_session(model(attributes, x, opset=opset)).run(None, {"x": x})[0])


def runtime_reads(attributes: Attributes) -> Callable[[int, int], Tensor]:
    """Return what `nearest` reads in ONNX Runtime, by two lengths; -1 where that is outside."""
    onnx = importlib.import_module("onnx")
    given = ", ".join(f'{name}="{value}"' for name, value in attributes.items())
    text = f"""<ir_version: 8, opset_import: ["": 19]>
        g (float[N] x, float[2] roi, int64[1] sizes) => (float[M] y) {{
            y = Resize<mode="nearest", extrapolation_value=-1.0, {given}>(x, roi, , sizes)
        }}"""
    session = _session(onnx.parser.parse_model(text))
    roi = np.array([0, 1], np.float32)

    def read(inputs: int, outputs: int) -> Tensor:
        x, sizes = np.arange(inputs, dtype=np.float32), np.array([outputs])
        return np.asarray(session.run(None, {"x": x, "roi": roi, "sizes": sizes})[0])

    return read


def _session(made: Any) -> Any:
    onnxruntime = importlib.import_module("onnxruntime")
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(made.SerializeToString(), options, providers=providers)


def random_call(seed: int) -> tuple[int, Attributes]:
    """Draw a length and a call that resizes axis 3 of tensors of shape (n, 1, rows, length)."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 26))
    drawn: Attributes = {
        "mode": str(rng.choice(MODES)),
        "coordinate_transformation_mode": str(rng.choice(TRANSFORMATIONS)),
        "axes": [3],
    }
    if drawn["mode"] == "nearest":
        drawn["nearest_mode"] = str(rng.choice(NEAREST_MODES))
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


def impulses(length: int, dtype: npt.DTypeLike, *, rows: int = 3) -> Tensor:
    """Return as many tensors as axis 3 has elements, each with a 1 at one, in the middle row."""
    x = np.zeros((length, 1, rows, length), dtype)
    x[:, 0, rows // 2] = np.eye(length)
    return x
