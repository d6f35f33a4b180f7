"""Limits are known from the shapes alone, and hold before anything is allocated."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest

from gradwire import InvalidRequestError, ops
from gradwire_server import dialects
from gradwire_server.errors import RequestLimitError, TableTooLargeError, UnknownOperatorError
from support.oracles.dialect_oracles import DML_RULES, dml_operators, lowered

BACKWARD = ops.InterpolateBackward(mode="linear", data_format="NCX")


@pytest.mark.parametrize("rule", DML_RULES)
def test_the_bound_on_entries_is_never_below_what_the_plan_holds(rule: str) -> None:
    for pair in dml_operators(rule):
        entries = 10 * (2 if rule == "linear" else 1) + 10 + 7
        plan = lowered(pair.forward, (7,), (10,), max_table_entries=entries)
        assert plan.table_entries <= entries
        with pytest.raises(TableTooLargeError):
            lowered(pair.forward, (7,), (10,), max_table_entries=entries - 1)


def test_a_table_too_large_names_the_setting() -> None:
    with pytest.raises(TableTooLargeError) as refused:
        lowered(BACKWARD, (1, 1, 40), (1, 1, 30), max_table_entries=99)
    assert "would need 150 entries; 99 are allowed" in refused.value.message
    assert (
        "GRADWIRE_MAX_TABLE_ENTRIES (gradwire-server --max-table-entries)" in refused.value.message
    )
    assert refused.value.facts == {
        "entries": "150",
        "limit": "max_table_entries",
        "allowed": "99",
    }


def test_entries_of_all_axes_count_together() -> None:
    shapes = ((40, 40), (30, 30))
    operator = ops.DmlResample(interpolation_mode="linear")
    lowered(operator, *shapes, max_table_entries=260)
    with pytest.raises(TableTooLargeError, match="would need 260 entries"):
        lowered(operator, *shapes, max_table_entries=259)


@pytest.mark.parametrize(
    ("given", "wanted", "field"),
    [((1, 1, 11), (1, 1, 5), "input.sizes[2]"), ((1, 1, 5), (1, 1, 11), "output.sizes[2]")],
    ids=str,
)
def test_a_float32_axis_too_long_names_the_axis_and_the_setting(
    given: tuple[int, ...], wanted: tuple[int, ...], field: str
) -> None:
    lowered(BACKWARD, given, wanted, max_float32_axis=11)
    with pytest.raises(RequestLimitError) as refused:
        lowered(BACKWARD, given, wanted, max_float32_axis=10)
    assert refused.value.message.startswith(f"{field} is 11;")
    assert "GRADWIRE_MAX_FLOAT32_AXIS (gradwire-server --max-float32-axis)" in refused.value.message
    assert refused.value.facts == {
        "field": field,
        "size": "11",
        "limit": "max_float32_axis",
        "allowed": "10",
    }


@pytest.mark.parametrize("mode", ["nearest", "linear", "linear_onnx", "cubic"])
def test_padding_counts_where_coordinates_are_float32(mode: Any) -> None:
    operator = ops.OpenvinoInterpolate(mode=mode, sizes=(2,), axes=(2,), pads_begin=(0, 0, 8))
    if mode == "linear_onnx":
        operator = dataclasses.replace(operator, sizes=(1, 1, 2), axes=())
    shapes = (1, 1, 3), (1, 1, 2)
    lowered(operator, *shapes, max_float32_axis=11)
    with pytest.raises(RequestLimitError, match=r"^input\.sizes\[2\] is 11 with its padding;"):
        lowered(operator, *shapes, max_float32_axis=10)
    pillow = dataclasses.replace(operator, mode="bilinear_pillow", axes=(1, 2), sizes=(1, 2))
    lowered(pillow, *shapes, max_float32_axis=1)


SLOPES: dict[str, tuple[str, Any]] = {
    "OpenVINO": ("cube_coeff", ops.OpenvinoInterpolate(mode="cubic", sizes=(5, 9))),
    "Pillow": ("cube_coeff", ops.OpenvinoInterpolate(mode="bicubic_pillow", sizes=(5, 9))),
    "ONNX Runtime": (
        "cubic_coeff_a",
        ops.OnnxResize(mode="cubic", sizes=(5, 9), arithmetic="float32", exclude_outside=True),
    ),
    "ONNX, antialiased": (
        "cubic_coeff_a",
        ops.OnnxResize(mode="cubic", sizes=(2, 3), antialias=True, arithmetic="float32"),
    ),
}


@pytest.mark.parametrize(("name", "operator"), SLOPES.values(), ids=SLOPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_slope_that_makes_weights_overflow_is_refused(
    name: str, operator: Any, sign: int
) -> None:
    with pytest.raises(InvalidRequestError, match=r"from -2\*\*120 to 2\*\*120$") as refused:
        dataclasses.replace(operator, **{name: sign * 2.0**121})
    assert refused.value.field == operator.path(name)
    steep = dataclasses.replace(operator, **{name: sign * 2.0**120})
    plan = lowered(steep, (5, 7), steep.sizes)
    assert plan.passes
    assert all(np.isfinite(one.map.weight).all() for one in plan.passes)


def test_the_default_ends_where_float32_half_pixels_end() -> None:
    operator = ops.DmlResample(interpolation_mode="nearest_neighbor")
    longest = 2**23
    plan = lowered(operator, (longest,), (1,))
    assert plan.output_shape == (1,)
    with pytest.raises(RequestLimitError):
        lowered(operator, (longest + 1,), (1,))


def test_an_axis_that_is_left_alone_has_no_limit() -> None:
    shape = (1, 1, 100)
    plan = lowered(BACKWARD, shape, shape, max_float32_axis=1, max_table_entries=1)
    assert plan.passes == ()


def test_a_giant_request_is_refused_without_allocating() -> None:
    tracemalloc.start()
    try:
        for pair in dml_operators("linear"):
            with pytest.raises(TableTooLargeError):
                lowered(pair.gradient, (2**62,), (3,), max_float32_axis=2**63)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_an_end_that_float32_rounds_up_stays_on_the_axis() -> None:
    # float32(inputs - 1) is inputs here, and so is every coordinate beyond the end.
    inputs = 2**24 + 4
    for rule in DML_RULES:
        for pair in dml_operators(rule, scales=(1e-9,)):
            plan = lowered(pair.forward, (inputs,), (2,), max_float32_axis=2**25)
            assert plan.passes[0].map.stop.tolist() == [inputs, inputs]


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(UnknownOperatorError, match="'roi_align' is not known"):
        dialects.lower("roi_align", BACKWARD, (1, 1, 4), (1, 1, 2))
    with pytest.raises(UnknownOperatorError):
        dialects.output_shape("roi_align", BACKWARD, (1, 1, 4))


def test_every_operator_of_the_contract_is_known() -> None:
    assert set(dialects.DIALECTS) == set(ops.OPERATORS)
    for name, dialect in dialects.DIALECTS.items():
        kind = ops.OPERATORS[name]
        assert (dialect.gradient, dialect.ranks) == (
            kind.gradient,
            range(kind.min_rank, kind.max_rank + 1),
        )
        assert kind.output_required == (dialect.output_shape is None)
