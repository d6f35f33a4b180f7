"""Limits and costs are known from shapes and attributes alone, before anything is allocated."""

import dataclasses
import math
import sys
import tracemalloc
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire import InvalidRequestError, ops
from gradwire.ops import jax, onnx
from gradwire.ops._base import Choice, rule_of
from gradwire_server import dialects
from gradwire_server.backends import NumpyCpu, compute_dtype
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TensorSpec
from gradwire_server.errors import RequestLimitError, TableTooLargeError
from support.evaluation_cases import computed
from support.examples import examples
from support.oracles.dialect_oracles import DML_RULES, dml_operators, lowered

BACKWARD = ops.InterpolateBackward(mode="linear", data_format="NCX")
Openvino = ops.OpenvinoInterpolate


def test_a_table_too_large_names_the_setting_and_entries_of_all_axes_count_together():
    shapes, operator = ((40, 40), (30, 30)), ops.DmlResample(interpolation_mode="linear")
    lowered(operator, *shapes, max_table_entries=260)
    with pytest.raises(TableTooLargeError, match="--max-table-entries") as refused:
        lowered(operator, *shapes, max_table_entries=259)
    facts = {"entries": "260", "limit": "max_table_entries", "allowed": "259"}
    assert refused.value.facts == facts


@pytest.mark.parametrize(
    ("given", "wanted", "field"),
    [((1, 1, 11), (1, 1, 5), "input.sizes[2]"), ((1, 1, 5), (1, 1, 11), "output.sizes[2]")],
    ids=str,
)
def test_a_float32_axis_too_long_names_the_axis_and_the_setting(given, wanted, field):
    lowered(BACKWARD, given, wanted, max_float32_axis=11)
    with pytest.raises(RequestLimitError, match="--max-float32-axis") as refused:
        lowered(BACKWARD, given, wanted, max_float32_axis=10)
    facts = {"field": field, "size": "11", "limit": "max_float32_axis", "allowed": "10"}
    assert refused.value.facts == facts


@pytest.mark.parametrize("mode", ["nearest", "linear", "linear_onnx", "cubic"])
def test_padding_counts_where_coordinates_are_float32(mode):
    operator = Openvino(mode=mode, sizes=(2,), axes=(2,), pads_begin=(0, 0, 8))
    if mode == "linear_onnx":
        operator = dataclasses.replace(operator, sizes=(1, 1, 2), axes=())
    shapes = (1, 1, 3), (1, 1, 2)
    lowered(operator, *shapes, max_float32_axis=11)
    with pytest.raises(RequestLimitError, match=r"^input\.sizes\[2\] is 11 with its padding;"):
        lowered(operator, *shapes, max_float32_axis=10)
    pillow = dataclasses.replace(operator, mode="bilinear_pillow", axes=(1, 2), sizes=(1, 2))
    lowered(pillow, *shapes, max_float32_axis=1)


FLOAT32 = {"mode": "cubic", "arithmetic": "float32"}
SLOPES = {
    "OpenVINO": Openvino(mode="cubic", sizes=(5, 9)),
    "Pillow": Openvino(mode="bicubic_pillow", sizes=(5, 9)),
    "ONNX Runtime": ops.OnnxResize(sizes=(5, 9), exclude_outside=True, **FLOAT32),
    "ONNX, antialiased": ops.OnnxResize(sizes=(2, 3), antialias=True, **FLOAT32),
}


@pytest.mark.parametrize("operator", SLOPES.values(), ids=SLOPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_slope_that_makes_weights_overflow_is_refused(operator, sign):
    name = "cube_coeff" if isinstance(operator, Openvino) else "cubic_coeff_a"
    with pytest.raises(InvalidRequestError, match=r"from -2\*\*120 to 2\*\*120$") as refused:
        dataclasses.replace(operator, **{name: sign * 2.0**121})
    assert refused.value.field == operator.path(name)
    steep = dataclasses.replace(operator, **{name: sign * 2.0**120})
    plan = lowered(steep, (5, 7), steep.sizes)
    assert plan.passes
    assert all(np.isfinite(one.map.weight).all() for one in plan.passes)


RULE = "tf_half_pixel_for_nn"
BESIDE = {"mode": "linear", "coordinate_transformation_mode": RULE, "scales": (1, 2)}
# Operator, shapes of its input and its result, and the axes that are resampled.
STILL = [
    *(
        (operator, (3, 4, 5), (3, 8, 5), [1])
        for rule in DML_RULES
        for pair in dml_operators(rule)
        for operator in pair
    ),
    (BACKWARD, (1, 1, 100), (1, 1, 100), []),
    (BACKWARD, (2**40, 2**41, 4), (2**40, 2**41, 2), [2]),
    *(
        (ops.JaxResizeGrad(method=each), (2**40, 6), (2**40, 3), [1])
        for each in get_args(jax.Method)
    ),
    # tf_half_pixel_for_nn would read half an element beside it.
    *(
        (ops.OnnxResize(arithmetic=each, **BESIDE), (2**40, 4), (2**40, 8), [1])
        for each in get_args(onnx.Arithmetic)
    ),
]


@pytest.mark.parametrize(("operator", "source", "result", "moved"), STILL, ids=repr)
def test_an_axis_that_is_left_alone_has_no_table_and_no_limit(operator, source, result, moved):
    plan = lowered(operator, source, result, max_float32_axis=8, max_table_entries=99)
    assert [each.axis for each in plan.passes] == moved


def peak(work):
    """Return the most bytes that work has allocated at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_giant_request_is_refused_without_allocating():
    def refused():
        for pair in dml_operators("linear"):
            with pytest.raises(TableTooLargeError):
                lowered(pair.gradient, (2**62,), (3,), max_float32_axis=2**63)

    assert peak(refused) < 100_000


def test_an_end_that_float32_rounds_up_stays_on_the_axis():
    # float32(inputs - 1) is inputs here, and so is every coordinate beyond the end.
    inputs = 2**24 + 4
    for rule in DML_RULES:
        for pair in dml_operators(rule, scales=(1e-9,)):
            plan = lowered(pair.forward, (inputs,), (2,), max_float32_axis=2**25)
            assert plan.passes[0].map.stop.tolist() == [inputs, inputs]


# Each forward: shapes of one long axis L among others, what names the sizes, and of which axes.
FORWARDS = {
    "dml_resample": ("L", "", slice(0)),
    "interpolate": ("11L", "sizes", slice(2, None)),
    "torch_interpolate": ("11L11", "size", slice(2, None)),
    "onnx_resize": ("L", "sizes", slice(None)),
    "tf_resize": ("1L11", "size", slice(1, 3)),
    "jax_resize": ("L", "shape", slice(None)),
    "openvino_interpolate": ("L1", "sizes", slice(None)),
}
FIXED = {
    "data_format": "NCX",
    "keep_aspect_ratio_policy": "stretch",
    "shape_calculation_mode": "sizes",
}


def random_call(chance, longest):
    """Return what the engine is asked, of one element on the wire; axes and padding are bounded."""
    forward = chance.choice(list(FORWARDS))
    gradient = chance.random() < 1 / 2
    kind = ops.OPERATORS[ops.OPERATORS[forward].counterpart if gradient else forward]
    dtype = np.dtype(chance.choice([np.float32, np.float32, np.float64]))
    while True:
        words = words_of(chance, kind)
        lengths = [math.ceil(math.exp(chance.uniform(0, math.log(longest)))) for _ in range(4)]
        # PyTorch's modes have axes of their own.
        rank = {"linear": 3, "trilinear": 5}.get(words.get("mode", ""), 4)
        shape, name, sized = FORWARDS[forward]
        sides = shape[:rank] if forward == "torch_interpolate" else shape
        source, result = (
            tuple(length if side == "L" else 1 for side in sides) for length in lengths[:2]
        )
        attributes = words | numbers_of(chance, forward, words, lengths[2:])
        if name:
            axes = attributes.get("axes", result)
            attributes[name] = result[sized][: len(axes)]
        try:
            operator = kind(**attributes)
        except InvalidRequestError:
            continue  # words that no call has together
        if gradient:
            source, result = result, source
        given = TensorSpec(dtype, source, (0,) * len(source))
        return EvaluationRequest(operator.name, operator, given, TensorSpec.packed(dtype, result))


def words_of(chance, kind):
    """Draw words and flags."""
    words = {}
    for field in dataclasses.fields(kind):
        rule = rule_of(field)
        if isinstance(rule, Choice):
            words[field.name] = FIXED.get(field.name) or chance.choice(rule.allowed)
        elif rule.type_name == "bool":
            words[field.name] = chance.random() < 1 / 2
    return words


def numbers_of(chance, forward, words, pads):
    """Draw numbers where the operator has some."""
    if forward == "dml_resample" and chance.random() < 1 / 2:
        scales = (math.exp(chance.uniform(-9, 9)),)
        return {"scales": scales, "input_pixel_offsets": (chance.uniform(-9, 9),)}
    if forward == "openvino_interpolate":
        axes = (0, 1) if words["mode"].endswith(("_pillow", "_onnx")) else (0,)
        begin, end = ((length,) if chance.random() < 1 / 2 else () for length in pads)
        return {"axes": axes, "pads_begin": begin, "pads_end": end}
    crops = words.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    return {"roi": (chance.uniform(-9, 9), chance.uniform(-9, 9))} if crops else {}


# Elements that are written in a millisecond, and those that a line of Python is worth.
_BUDGET = 1 << 20
_LINE = 64
# Of any backend.
_MOST_INLINE = 1 << 18
laws = examples(200)


def elements_written(work):
    """Count the elements of all arrays that work makes, and its lines, by what those are worth."""
    written = 0

    def on_line(_frame, event, _argument):
        nonlocal written
        if event == "line":
            now, highest = tracemalloc.get_traced_memory()
            written += _LINE + (highest - now) // 8
            tracemalloc.reset_peak()
        return on_line

    def traced():
        before = sys.gettrace()
        sys.settrace(on_line)
        try:
            work()
        finally:
            sys.settrace(before)

    peak(traced)
    return written


@laws
@given(chance=st.randoms(use_true_random=False))
def test_what_counts_as_quick_writes_few_elements(chance):
    made, request = Preparer(Limits(), most_kept=1 << 20), random_call(chance, 1 << 22)
    try:
        assume(made.preparation(request).is_quick)
    except RequestLimitError:
        return
    assert elements_written(lambda: made.prepare(request)) < _BUDGET
    evaluation = made.prepare(request)
    if evaluation.inline_work <= _MOST_INLINE:
        data = np.ones(1, evaluation.input.dtype).view(np.uint8)
        written = elements_written(lambda: computed(evaluation, data, NumpyCpu()))
        assert written < 8 * evaluation.inline_work + _BUDGET


@laws
@given(chance=st.randoms(use_true_random=False))
def test_tables_take_no_more_memory_than_is_told_before(chance):
    request = random_call(chance, 1 << 18)
    shapes = request.input.sizes, request.resolved().sizes
    compute = compute_dtype(request.input.dtype)
    try:
        told = dialects.forward(request.operator, request.attributes, *shapes, compute=compute)
    except RequestLimitError:
        return
    assume(told.tables and sum(axis.work for axis in told.tables) < 1 << 24)
    assert peak(told.plan) <= sum(axis.memory_bytes for axis in told.tables)


def test_a_window_of_padding_is_bounded_like_a_table():
    operator = Openvino(sizes=(1, 1), pads_begin=(1 << 30,), mode="bilinear_pillow", axes=(0, 1))
    with pytest.raises(RequestLimitError, match="max-table-entries"):
        dialects.forward(operator.name, operator, (1, 1), (1, 1))
