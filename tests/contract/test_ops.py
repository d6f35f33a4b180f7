"""An operator is a value: checked, kept exactly, and carried by its message."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import pydoc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import ops, v1
from gradwire.errors import InvalidRequestError
from gradwire.ops._base import Choice, rule_of

FLOAT32_MAX = float(np.finfo(np.float32).max)
LINEAR = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_LINEAR
NEAREST = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR
SWAPPED = v1.DmlOffsetConvention.DML_OFFSET_CONVENTION_SWAPPED


def dml_arrays(**number: Any) -> st.SearchStrategy[list[float]]:
    return st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, **number), max_size=8
    )


DML = {
    "interpolation_mode": st.sampled_from(["nearest", "nearest_neighbor", "linear"]),
    "scales": dml_arrays(min_value=0, exclude_min=True),
    "input_pixel_offsets": dml_arrays(),
    "output_pixel_offsets": dml_arrays(),
}
TIES = {"nearest_rounding": st.sampled_from(["half_down", "half_up"])}
DIRECTION = {"rounding_direction": st.sampled_from(["increasing", "decreasing"])}
OFFSETS = {"offset_convention": st.sampled_from(["forward", "swapped"])}
INTERPOLATE = {
    "mode": st.sampled_from(["nearest", "linear", "bilinear", "trilinear"]),
    "coordinate_transformation_mode": st.sampled_from(["half_pixel", "align_corners"]),
    "sizes": st.lists(st.integers(1, 2**63 - 1), max_size=3),
    "scales": st.lists(
        st.floats(width=32, min_value=0, exclude_min=True, allow_infinity=False), max_size=3
    ),
    "data_format": st.sampled_from(["NXC", "NCX"]),
}
operators = st.one_of(
    st.builds(ops.DmlResampleGrad, **DML, **TIES, **OFFSETS),
    st.builds(ops.DmlResampleGrad1, **DML, **DIRECTION, **OFFSETS),
    st.builds(ops.DmlResample, **DML, **TIES),
    st.builds(ops.DmlResample2, **DML, **DIRECTION),
    st.builds(ops.InterpolateBackward, **INTERPOLATE),
    st.builds(ops.Interpolate, **INTERPOLATE),
)


@given(operators)
def test_a_message_carries_an_operator_there_and_back(operator: ops.Operator) -> None:
    wire = ops.to_message(operator).SerializeToString()
    assert ops.from_message(v1.Operator.FromString(wire)) == operator


@given(operators)
def test_an_operator_survives_pickle_copy_hash_and_repr(operator: ops.Operator) -> None:
    for twin in (pickle.loads(pickle.dumps(operator)), copy.deepcopy(operator)):  # noqa: S301
        assert twin == operator
        assert hash(twin) == hash(operator)
    assert eval(repr(operator), dict(vars(ops))) == operator  # noqa: S307


def test_float32_attributes_are_shown_with_the_digits_that_tell_them() -> None:
    resize = ops.OnnxResize(scales=(0.1, 3), cubic_coeff_a=-0.3)
    assert repr(resize) == "OnnxResize(cubic_coeff_a=-0.3, scales=(0.1, 3.0))"
    assert resize.shown()["scales"] == (0.1, 3.0)
    double = ops.OpenvinoInterpolate(mode="cubic", cube_coeff=float(np.float32(0.1)))
    assert double.shown()["cube_coeff"] == float(np.float32(0.1))


@given(st.floats(allow_nan=False), st.sampled_from(["scales", "input_pixel_offsets"]))
def test_numbers_are_kept_exactly_as_float32_or_refused(number: float, name: str) -> None:
    with np.errstate(over="ignore"):
        rounded = float(np.float32(number))
    valid = np.isfinite(rounded) and (rounded > 0 or name != "scales")
    given_numbers: dict[str, Any] = {name: [number]}
    if valid:
        operator = ops.DmlResampleGrad(interpolation_mode="linear", **given_numbers)
        assert getattr(operator, name) == (rounded,)
    else:
        with pytest.raises(InvalidRequestError) as caught:
            ops.DmlResampleGrad(interpolation_mode="linear", **given_numbers)
        assert caught.value.field == f"operator.dml_resample_grad.{name}[0]"


def test_the_name_of_torch_and_onnx_stands_for_nearest_neighbor() -> None:
    assert ops.DmlResampleGrad(interpolation_mode="nearest") == ops.DmlResampleGrad(
        interpolation_mode="nearest_neighbor"
    )


def test_defaults_are_those_of_the_schema() -> None:
    assert ops.from_message(
        v1.Operator(dml_resample_grad=v1.DmlResample(interpolation_mode=LINEAR))
    ) == ops.DmlResampleGrad(
        interpolation_mode="linear",
        scales=(),
        input_pixel_offsets=(),
        output_pixel_offsets=(),
        nearest_rounding="half_down",
        offset_convention="forward",
    )
    assert ops.from_message(
        v1.Operator(interpolate=v1.Interpolate(mode=v1.Interpolate.MODE_LINEAR))
    ) == ops.Interpolate(
        mode="linear", coordinate_transformation_mode="half_pixel", data_format="NXC"
    )


def test_attributes_at_their_default_do_not_travel() -> None:
    explicit = ops.InterpolateBackward(
        mode="nearest", coordinate_transformation_mode="half_pixel", data_format="NXC", sizes=()
    )
    assert ops.to_message(explicit) == v1.Operator(
        interpolate_backward=v1.Interpolate(mode=v1.Interpolate.MODE_NEAREST)
    )


def numbers() -> list[Any]:
    return [
        [2, 3],
        (2.0, 3.0),
        np.array([2, 3]),
        np.array([2, 3], np.float16),
        [np.float64(2), np.array(3)],
        range(2, 4),
        (each for each in (2, 3)),
    ]


@pytest.mark.parametrize("given_numbers", numbers())
def test_any_sequence_of_numbers_is_taken_and_kept_as_a_tuple(given_numbers: Any) -> None:
    operator = ops.DmlResample(interpolation_mode="linear", scales=given_numbers)
    assert operator.scales == (2.0, 3.0)
    assert [type(scale) for scale in operator.scales] == [float, float]


@pytest.mark.parametrize(
    "given_numbers", [[4], (4,), np.array([4]), np.array([4], np.int8)], ids=repr
)
def test_any_sequence_of_integers_is_taken_and_kept_as_a_tuple(given_numbers: Any) -> None:
    operator = ops.Interpolate(mode="linear", sizes=given_numbers, sizes_tensor=given_numbers)
    assert operator.sizes == operator.sizes_tensor == (4,)
    assert type(operator.sizes[0]) is int


@pytest.mark.parametrize("kind", ops.OPERATORS.values(), ids=lambda kind: kind.name)
def test_help_describes_every_attribute(kind: type[ops.Operator]) -> None:
    told = " ".join(pydoc.plain(pydoc.render_doc(kind)).replace("|", " ").split())
    attributes = ops.describe(kind).attributes
    assert attributes
    for attribute in attributes:
        assert f"{attribute.name}: {attribute.type} {attribute.description}" in told
    for rule in map(rule_of, dataclasses.fields(kind)):
        for word in rule.allowed if isinstance(rule, Choice) else ():
            assert repr(word) in told


def test_an_operator_cannot_be_changed() -> None:
    operator = ops.Interpolate(mode="linear")
    with pytest.raises(dataclasses.FrozenInstanceError):
        operator.mode = "nearest"  # type: ignore[misc]
    assert dataclasses.replace(operator, mode="nearest").mode == "nearest"
    with pytest.raises(InvalidRequestError, match="did you mean 'nearest'"):
        dataclasses.replace(operator, mode="nearst")  # type: ignore[arg-type]


def test_attributes_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        ops.Interpolate("linear")  # type: ignore[call-arg]


def test_linear_does_not_read_the_rounding_direction() -> None:
    assert ops.DmlResample2(interpolation_mode="linear").rounding_direction is None


def test_offset_convention_forward_is_fine_in_a_forward_message() -> None:
    forward = v1.DmlOffsetConvention.DML_OFFSET_CONVENTION_FORWARD
    given = v1.DmlResample(interpolation_mode=LINEAR, offset_convention=forward)
    assert ops.from_message(v1.Operator(dml_resample=given)) == ops.DmlResample(
        interpolation_mode="linear"
    )
