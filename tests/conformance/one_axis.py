"""Tables of one axis: DirectML's formula; what one-hot images show of TensorFlow, JAX, OpenVINO."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from conformance.rows import UP_TO_64, Section, Tally
from gradwire import ops
from gradwire.ops import openvino
from support.oracles import dialect_oracles as oracles
from support.oracles.dialect_oracles import DML_RULES, AxisCase, Matrix, axis_matrix, axis_table

_FORMULA = "DirectML: the documented formula"


def _add_dml(
    tally: Tally, rule: str, lengths: tuple[int, int], values: list[float], words: str = ""
) -> None:
    inputs, outputs = lengths
    scale, *(first, second) = values
    expected = oracles.dml_axis(inputs, outputs, scale=scale, offsets=(first, second), rule=rule)
    mode = rule if rule == "linear" else f"nearest, {rule}"
    for pair in oracles.dml_operators(rule, scales=(scale,), offsets=(first, second)):
        for operator, table in (
            (pair.forward, axis_table(pair.forward, (inputs,), (outputs,))),
            (pair.gradient, axis_table(pair.gradient, (outputs,), (inputs,)).T),
        ):
            tally.add((_FORMULA, operator.name, mode + words, "float32"), table, expected)


def _compare_dml(tally: Tally) -> None:
    """Take lengths, scales that are often not their ratio, and offsets."""
    generator = np.random.default_rng(9)
    for number in range(1000):
        inputs, outputs = oracles.draw_sizes(generator, largest=300)
        ratio = generator.choice([outputs / inputs, np.exp(generator.uniform(-3, 3))])
        offsets = generator.choice([0.0, 0.5, -0.5, generator.uniform(-4, 4)], 2)
        values = np.array([ratio, *offsets], np.float32).tolist()
        _add_dml(tally, list(DML_RULES)[number % len(DML_RULES)], (inputs, outputs), values)
    for rule in (each for each in DML_RULES if each != "linear"):
        for inputs, outputs in tally.lengths():
            scale = float(np.float32(outputs) / np.float32(inputs))
            _add_dml(tally, rule, (inputs, outputs), [scale, 0.5, -0.5], f", {UP_TO_64}")


TF_OPS = {
    "bilinear": "ResizeBilinear",
    "nearest_neighbor": "ResizeNearestNeighbor",
    "bicubic": "ResizeBicubic",
}
_TF_FLAGS: tuple[dict[str, bool], ...] = ({}, {"align_corners": True}, {"half_pixel_centers": True})
_TF_ATTRIBUTES: list[dict[str, Any]] = [
    {"kind": kind, **flags} for kind, flags in itertools.product(TF_OPS, _TF_FLAGS)
]


def _tf_forward(tf: Any, case: AxisCase, rows: Any) -> Any:
    """Resize each of some rows."""
    kind, *flags = case.attributes
    op = getattr(tf.raw_ops, TF_OPS[case.attributes[kind]])
    images = np.asarray(rows, np.float32)[:, :, np.newaxis, np.newaxis]
    given = {flag: case.attributes[flag] for flag in flags}
    return op(images=images, size=[case.outputs, 1], **given).numpy()[:, :, 0, 0]


def _tf_gradient(tf: Any, case: AxisCase) -> Any:
    kind, *flags = case.attributes
    name, shape = case.attributes[kind], (case.outputs, case.inputs, 1, 1)
    source = {"original_image": np.zeros(shape, np.float32)}
    told = {"size": shape[1:3]} if name == "nearest_neighbor" else source
    grads = np.eye(case.outputs, dtype=np.float32)[:, :, np.newaxis, np.newaxis]
    given = {flag: case.attributes[flag] for flag in flags}
    op = getattr(tf.raw_ops, f"{TF_OPS[name]}Grad")
    return op(grads=grads, **told, **given).numpy()[:, :, 0, 0]


def tf_table(case: AxisCase) -> Matrix:
    return axis_matrix(ops.TfResize(**case.attributes), case, rank=4, axis=1, dtype=np.float32)


def _compare_tf(tally: Tally) -> None:
    tf: Any = importlib.import_module("tensorflow")
    generator = np.random.default_rng(9)
    for i in range(1000):
        attributes = _TF_ATTRIBUTES[i % len(_TF_ATTRIBUTES)]
        case = AxisCase(attributes, *oracles.draw_sizes(generator, largest=300))
        matrix, words = tf_table(case), ", ".join((attributes["kind"], *list(attributes)[1:]))
        theirs = _tf_forward(tf, case, np.eye(case.inputs)).T
        tally.add(("tensorflow: weights", "tf_resize", words, "float32"), matrix, theirs)
        key = ("tensorflow: weights", "tf_resize_grad", words, "float32")
        tally.add(key, matrix, _tf_gradient(tf, case))
    for flags in _TF_FLAGS:
        for inputs, outputs in tally.lengths():
            case = AxisCase({"kind": "nearest_neighbor", **flags}, inputs, outputs)
            (read,) = _tf_forward(tf, case, [np.arange(inputs)])
            words = ", ".join(("nearest_neighbor", *flags, UP_TO_64))
            key = ("tensorflow: elements read", "tf_resize", words, "float32")
            tally.add(key, tf_table(case).argmax(axis=1), read)


JAX_METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
_JAX_ATTRIBUTES: list[dict[str, Any]] = [{"method": "nearest"}] + [
    {"method": method, "antialias": antialias}
    for method, antialias in itertools.product(JAX_METHODS[1:], (True, False))
]


def _jax_resized(jax: Any, rows: Any, case: AxisCase) -> Any:
    return jax.image.resize(rows, (rows.shape[0], case.outputs), **case.attributes)


def _jax_tables(jax: Any, few: Sequence[AxisCase], dtype: Any) -> list[tuple[Matrix, Matrix]]:
    """Return both tables of a few cases, of one program: compiling is what takes time."""

    def program(images: list[Any], cotangents: list[Any]) -> list[Any]:
        found: list[Any] = []
        for x, g, case in zip(images, cotangents, few, strict=True):
            source = jax.ShapeDtypeStruct((len(g), case.inputs), g.dtype)
            (transposed,) = jax.linear_transpose(partial(_jax_resized, jax, case=case), source)(g)
            found.append((_jax_resized(jax, x, case), transposed))
        return found

    images = [np.eye(case.inputs, dtype=dtype) for case in few]
    cotangents = [np.eye(case.outputs, dtype=dtype) for case in few]
    return [
        (np.asarray(y).T.astype(np.float64), np.asarray(g).astype(np.float64))
        for y, g in jax.jit(program)(images, cotangents)
    ]


def jax_allowed(case: AxisCase, dtype: npt.DTypeLike = np.float32) -> float:
    """Return how far weights may be from JAX's.

    XLA contracts products and sums of coordinates, up to 150 here, which moves them by a unit of
    the last place; weights follow, and by as much again where they are divided by their sum.
    """
    if case.attributes["method"] == "nearest":
        return 0
    return 150 * 2.0**-23 if dtype == np.float32 else 2.0**-43


def jax_table(case: AxisCase, dtype: npt.DTypeLike = np.float32) -> Matrix:
    return axis_matrix(ops.JaxResize(**case.attributes), case, rank=2, axis=1, dtype=dtype)


def _add_jax(tally: Tally, jax: Any, count: int, dtype: Any) -> None:
    """Compare tables and transposed tables, nine cases in a program."""
    generator, kinds = np.random.default_rng(9), len(_JAX_ATTRIBUTES)
    cases = [
        AxisCase(_JAX_ATTRIBUTES[i % kinds], *oracles.draw_sizes(generator, largest=150))
        for i in range(count)
    ]
    for few in (cases[first : first + 9] for first in range(0, count, 9)):
        for case, theirs in zip(few, _jax_tables(jax, few, dtype), strict=True):
            words = case.attributes["method"]
            if not case.attributes.get("antialias", True):
                words += ", no antialias"
            for name, table in zip(("jax_resize", "jax_resize_grad"), theirs, strict=True):
                key = ("jax: weights", name, words, dtype.__name__)
                allowed = jax_allowed(case, dtype)
                tally.add(key, jax_table(case, dtype), table, allowed=allowed)


def _compare_jax(tally: Tally) -> None:
    jax: Any = importlib.import_module("jax")
    # XLA takes a tenth of a second for the program of each case.
    _add_jax(tally, jax, 54 if tally.brief else 1008, np.float32)
    lengths = range(1, 65)
    for inputs in (2, 4, 10, 20, 30, 34, 64) if tally.brief else lengths:

        def program(x: Any) -> list[Any]:
            return [jax.image.resize(x, (outputs,), "nearest") for outputs in lengths]

        read = jax.jit(program)(np.arange(inputs, dtype=np.float32))
        for outputs, theirs in zip(lengths, read, strict=True):
            case = AxisCase({"method": "nearest"}, inputs, outputs)
            key = ("jax: elements read", "jax_resize", f"nearest, {UP_TO_64}", "float32")
            ours = oracles.elements_read(ops.JaxResize(method="nearest"), case)
            tally.add(key, ours, np.asarray(theirs).astype(np.int64))
    with jax.enable_x64(True):  # noqa: FBT003 - as JAX takes it
        _add_jax(tally, jax, 18 if tally.brief else 180, np.float64)


OPENVINO_MODES = get_args(openvino.Mode)
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


def _openvino_cases(count: int) -> Iterator[AxisCase]:
    """Draw cases of every mode; lengths are up to 60, and padding up to 3."""
    generator = np.random.default_rng(9)
    for i in range(count):
        mode = OPENVINO_MODES[i % len(OPENVINO_MODES)]
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
        inputs, outputs = oracles.draw_sizes(generator, largest=60)
        length, others = inputs + begin + end, [1] * (mode in _TWO_AXES)
        if generator.integers(2):
            yield AxisCase({**attributes, "sizes": [outputs, *others]}, inputs, outputs)
            continue
        scale = float(np.float32(max(np.exp(generator.uniform(-1.5, 1.5)), 1 / length)))
        attributes |= {"shape_calculation_mode": "scales", "scales": [scale, *others]}
        told = int(np.float32(length) * (np.float32(scale) + np.float32(1e-6)))
        yield AxisCase(attributes, inputs, told)


def _openvino_node(operator: ops.OpenvinoInterpolate, shape: tuple[int, ...]) -> Any:
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


def openvino_reference(operator: ops.OpenvinoInterpolate, x: Any) -> Any:
    runtime = importlib.import_module("openvino")
    _, node, others = _openvino_node(operator, x.shape)
    result = runtime.Tensor(runtime.Type.f32, node.get_output_shape(0))
    given = [runtime.Tensor(np.ascontiguousarray(each)) for each in (x, *others)]
    assert node.evaluate([result], given)
    return result.data.copy()


def openvino_plugin(operator: ops.OpenvinoInterpolate, x: Any) -> Any:
    runtime = importlib.import_module("openvino")
    image, node, _ = _openvino_node(operator, x.shape)
    model = runtime.Model([node], [image])
    compiled = runtime.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(np.ascontiguousarray(x))[0].copy()


def _openvino_table(implementation: Any, case: AxisCase) -> Matrix:
    """Return what an implementation makes of one-hot images, along axis 2 of 4."""
    x = np.eye(case.inputs, dtype=np.float32)[:, np.newaxis, :, np.newaxis]
    result = implementation(ops.OpenvinoInterpolate(**case.attributes), x)
    matrix: Matrix = result[:, 0, :, 0].T.astype(np.float64)
    return matrix


def openvino_table(case: AxisCase) -> Matrix:
    operator = ops.OpenvinoInterpolate(**case.attributes)
    ours = axis_matrix(operator, case, rank=4, axis=2, dtype=np.float32)
    return ours.astype(np.float32).astype(np.float64)


def _openvino_deviates(case: AxisCase, theirs: Matrix) -> bool:
    """Tell whether the plugin has the table without what it ignores."""
    known = _IGNORED.get(case.attributes["mode"])
    if known is None:
        return False
    without = openvino_table(replace(case, attributes=case.attributes | known))
    return bool(np.abs(without - theirs).max() <= _PLUGIN)


def _compare_openvino(tally: Tally) -> None:
    for case in _openvino_cases(3000):
        words = case.attributes["mode"]
        if not words.endswith("pillow"):
            words += f", {case.attributes['coordinate_transformation_mode']}"
        key = ("openvino: weights of the reference", _OPERATOR, words, "float32")
        tally.add(key, openvino_table(case), _openvino_table(openvino_reference, case))
    for rule, rounding in itertools.product(_TRANSFORMATIONS, _ROUNDINGS):
        attributes = {"coordinate_transformation_mode": rule, "nearest_mode": rounding}
        words = f"nearest, {rule}, {rounding}, {UP_TO_64}"
        key = ("openvino: elements the reference reads", _OPERATOR, words, "float32")
        for inputs, outputs in tally.lengths():
            operator = ops.OpenvinoInterpolate(mode="nearest", sizes=(outputs,), **attributes)
            read = openvino_reference(operator, np.arange(inputs, dtype=np.float32))
            case = AxisCase(attributes, inputs, outputs)
            tally.add(key, oracles.elements_read(operator, case), read)
    for case in _openvino_cases(300):
        theirs = _openvino_table(openvino_plugin, case)
        key = ("openvino: weights of the CPU plugin", _OPERATOR, case.attributes["mode"], "float32")
        deviates = partial(_openvino_deviates, case, theirs)
        tally.add(key, openvino_table(case), theirs, allowed=_PLUGIN, deviates=deviates)


DIRECTML = Section.of("DirectML", _compare_dml)
TENSORFLOW = Section.of("TensorFlow", _compare_tf)
JAX = Section.of("JAX", _compare_jax)
OPENVINO = Section.of("OpenVINO", _compare_openvino)
# Functions that make the table of a case, by the section whose tables are stored.
TABLES = {"TensorFlow": tf_table, "JAX": jax_table, "OpenVINO": openvino_table}
