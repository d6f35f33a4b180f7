"""ONNX's Resize: published node tests, the reference implementation, ONNX Runtime."""

from __future__ import annotations

import importlib
import itertools
from functools import partial
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Numbers, Row, Section, Tally
from gradwire import ops
from gradwire_server import dialects
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Tensor, evaluate
from support.oracles.onnx_models import (
    NEAREST_MODES,
    TRANSFORMATIONS,
    Attributes,
    impulses,
    node_cases,
    random_call,
    reference,
    runtime,
    runtime_reads,
)
from support.oracles.onnx_oracles import Axis, coordinate

CASES = 1500
_NEAR = 1e-9
# The reference evaluates each output by itself, so that all seven would take minutes.
_BY_REFERENCE = ("half_pixel", "asymmetric")


def evaluated(x: Tensor, attributes: Attributes, arithmetic: str) -> Tensor:
    """Evaluate Resize here."""
    given: Attributes = {**attributes, "arithmetic": arithmetic}
    operator = ops.OnnxResize(**given)
    return evaluate(operator, x, dialects.output_shape("onnx_resize", operator, x.shape) or ())


def _words(attributes: Attributes) -> str:
    mode, rule = attributes["mode"], attributes["coordinate_transformation_mode"]
    return f"{mode}, {rule}"


def _nodes(tally: Tally) -> None:
    makers: Any = importlib.import_module("data.make_onnx_vectors")
    rng = np.random.default_rng(20240229)
    for case in node_cases():
        x, mode = case.x.astype(np.float64), case.attributes.get("mode", "nearest")
        forward = ops.OnnxResize(**case.attributes)
        allowed = 0 if mode == "nearest" else 1e-5 + 1e-6 * np.abs(case.y)
        key = ("onnx: published node tests", "onnx_resize", mode, "float32")
        tally.add(key, evaluate(forward, x, case.y.shape), case.y, allowed=allowed)
        g = rng.integers(-9, 10, case.y.shape).astype(np.float64)
        gradient = evaluate(ops.OnnxResizeGrad(**case.attributes), g, x.shape)
        expected = makers.gradient(case, g)
        key = ("onnx: transposed reference", "onnx_resize_grad", mode, "float64")
        tally.add(key, gradient, expected, allowed=1e-12 * (1 + np.abs(expected)))


def _explained(attributes: Attributes, length: int, difference: Numbers) -> bool:
    """Tell whether all that differs is beside a whole or half coordinate, or one output's."""
    outputs = len(difference)
    rule = attributes["coordinate_transformation_mode"]
    scale = np.float64(attributes["scales"][-1] if "scales" in attributes else outputs / length)
    axis = Axis(length, outputs, scale, scale * length, attributes.get("roi", (0, 1)))
    differ = np.flatnonzero(difference > 1e-11).tolist()
    twice = [2 * float(coordinate(axis, rule, index)) for index in differ]
    single = rule == "pytorch_half_pixel" and outputs == 1
    return single or all(abs(each - round(each)) < _NEAR for each in twice)


def add_random(tally: Tally, seed: int) -> None:
    """Compare a random call with ONNX Runtime and with the reference."""
    length, attributes = random_call(seed)
    words = _words(attributes)
    # Rows, whose scale is 1, get cubic weights of nearly zero in ONNX Runtime. They do not show in
    # the middle one of three, nor in a single one where the others are left out.
    rows = 1 if attributes.get("exclude_outside") else 3
    x = impulses(length, np.float32, rows=rows)
    result, expected = (
        each[:, :, rows // 2]
        for each in (evaluated(x, attributes, "float32"), runtime(attributes, x))
    )
    tally.add(("onnxruntime: weights", "onnx_resize, FLOAT32", words, "float32"), result, expected)
    if attributes["coordinate_transformation_mode"] == "tf_half_pixel_for_nn":
        return  # not of the opsets the reference has
    x = impulses(length, np.float64)
    ours, theirs = evaluated(x, attributes, "spec_float64"), reference(attributes, x)
    tally.add(
        ("onnx: weights of the reference", "onnx_resize", words, "float64"),
        ours,
        theirs,
        allowed=1e-11,
        deviates=lambda: _explained(attributes, length, np.abs(ours - theirs).max(axis=(0, 1, 2))),
    )


def _nearest(tally: Tally, attributes: Attributes) -> None:
    """Compare what `nearest` reads in ONNX Runtime and, by a few rules, in the reference."""
    rule, rounding = attributes["coordinate_transformation_mode"], attributes["nearest_mode"]
    words = f"nearest, {rule}, {rounding}, {UP_TO_64}"
    read = runtime_reads(attributes)
    for inputs, outputs in axis_tables.lengths_up_to(64):
        given: Attributes = {**attributes, "mode": "nearest", "sizes": (outputs,)}
        case = AxisCase(given, inputs, outputs)
        operator = ops.OnnxResize(**given, arithmetic="float32")
        tally.add(
            ("onnxruntime: elements read", "onnx_resize, FLOAT32", words, "float32"),
            axis_tables.elements_read(operator, case),
            read(inputs, outputs),
        )
        if rule not in _BY_REFERENCE:
            continue
        ours = axis_tables.elements_read(ops.OnnxResize(**given), case)
        theirs = reference(given, np.arange(inputs, dtype=np.float64))
        tally.add(
            ("onnx: elements the reference reads", "onnx_resize", words, "float64"),
            ours,
            theirs,
            deviates=partial(_explained, given, inputs, np.abs(ours - theirs)),
        )


def rows() -> list[Row]:
    """Compare with the installed onnx and onnxruntime."""
    tally = Tally()
    _nodes(tally)
    for seed in range(CASES):
        add_random(tally, seed)
    for rule, rounding in itertools.product(TRANSFORMATIONS, NEAREST_MODES):
        _nearest(tally, {"coordinate_transformation_mode": rule, "nearest_mode": rounding})
    return sorted(tally.rows(), key=lambda row: (row.peer, row.operator, row.attributes))


SECTION = Section(
    "ONNX",
    ("onnx", "onnxruntime"),
    "dialects/onnx.md",
    "Weights are read off one-hot tensors of up to 25 elements in random calls, with antialias,"
    " exclude_outside, roi, policies, sizes and scales among them. Those of ONNX Runtime must have"
    " equal bits, those of the reference implementation be within 1e-11, save beside whole and half"
    " coordinates, where float64 rounds them in the reference. Published results are float32. What"
    " `nearest` reads at all pairs of lengths up to 64 must be equal in ONNX Runtime by each of the"
    " seven coordinates and four roundings, and in the reference, which is slow, by two.",
    rows,
)
