"""A value out of order is refused when an operator is made, in words a stranger can act on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradwire import ops, v1
from gradwire.errors import InvalidRequestError

FLOAT32_MAX = float(np.finfo(np.float32).max)
LINEAR = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_LINEAR
NEAREST = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR
SWAPPED = v1.DmlOffsetConvention.DML_OFFSET_CONVENTION_SWAPPED


def dml(interpolation_mode: Any = "linear", **attributes: Any) -> Callable[[], ops.Operator]:
    return lambda: ops.DmlResampleGrad(interpolation_mode=interpolation_mode, **attributes)


def interpolate(mode: Any = "linear", **attributes: Any) -> Callable[[], ops.Operator]:
    return lambda: ops.Interpolate(mode=mode, **attributes)


def message(**member: Any) -> Callable[[], ops.Operator]:
    return lambda: ops.from_message(v1.Operator(**member))


REFUSALS: dict[str, tuple[Callable[[], ops.Operator], str, list[str]]] = {
    "missing": (
        ops.OPERATORS["dml_resample_grad"],
        "dml_resample_grad.interpolation_mode",
        ["is missing", "'linear'"],
    ),
    "unknown name": (dml(scale=[1]), "dml_resample_grad.scale", ["did you mean 'scales'?"]),
    "unknown word": (
        dml(interpolation_mode="cubic"),
        "dml_resample_grad.interpolation_mode",
        ["is 'cubic'", "'nearest_neighbor' (also 'nearest') or 'linear'"],
    ),
    "misspelt word": (
        interpolate(coordinate_transformation_mode="align-corner"),
        "interpolate.coordinate_transformation_mode",
        ["is 'align-corner'", "'half_pixel' or 'align_corners'", "did you mean 'align_corners'?"],
    ),
    "misspelt synonym": (
        dml(interpolation_mode="nearst"),
        "dml_resample_grad.interpolation_mode",
        [
            "is 'nearst'",
            "give 'nearest_neighbor' (also 'nearest') or",
            "did you mean 'nearest_neighbor'?",
        ],
    ),
    "wrong case": (
        interpolate(data_format="ncx"),
        "interpolate.data_format",
        ["did you mean 'NCX'?"],
    ),
    "number for a word": (interpolate(mode=2), "interpolate.mode", ["is 2 (int)", "'bilinear'"]),
    "none for a word": (interpolate(mode=None), "interpolate.mode", ["is None", "'bilinear'"]),
    "zero scale": (dml(scales=[1, 0]), "dml_resample_grad.scales[1]", ["is 0 (int)", "above 0"]),
    "negative scale": (dml(scales=[-1.5]), "dml_resample_grad.scales[0]", ["is -1.5", "above 0"]),
    "nan": (dml(scales=[float("nan")]), "dml_resample_grad.scales[0]", ["is nan", "finite"]),
    "infinity": (
        dml(output_pixel_offsets=[0, 0, -np.inf]),
        "dml_resample_grad.output_pixel_offsets[2]",
        ["is -inf", "finite"],
    ),
    "beyond float32": (dml(scales=[FLOAT32_MAX * 2]), "dml_resample_grad.scales[0]", ["float32"]),
    "beyond float64": (dml(scales=[10**400]), "dml_resample_grad.scales[0]", ["(int)", "float32"]),
    "beyond print": (dml(scales=[10**5000]), "dml_resample_grad.scales[0]", ["too long to show"]),
    "rounds to zero": (dml(scales=[1e-60]), "dml_resample_grad.scales[0]", ["is 1e-60", "above 0"]),
    "boolean": (dml(scales=[True]), "dml_resample_grad.scales[0]", ["is True (bool)", "numbers"]),
    "numpy boolean": (dml(scales=np.array([True])), "dml_resample_grad.scales[0]", ["bool"]),
    "complex": (dml(scales=[1j]), "dml_resample_grad.scales[0]", ["is 1j (complex)", "numbers"]),
    "text in a sequence": (dml(scales=["2"]), "dml_resample_grad.scales[0]", ["is '2' (str)"]),
    "text": (dml(scales="2"), "dml_resample_grad.scales", ["is '2' (str)", "in a sequence"]),
    "one number": (dml(scales=2.0), "dml_resample_grad.scales", ["is 2.0", "in a sequence"]),
    "no axes": (dml(scales=np.array(2.0)), "dml_resample_grad.scales", ["in a sequence"]),
    "no order": (dml(scales={2.0, 3.0}), "dml_resample_grad.scales", ["(set)", "in a sequence"]),
    "none": (dml(scales=None), "dml_resample_grad.scales", ["is None", "in a sequence"]),
    "two axes": (dml(scales=np.ones((2, 2))), "dml_resample_grad.scales[0]", ["(ndarray)"]),
    "too many": (dml(scales=[1] * 9), "dml_resample_grad.scales", ["more than 8 values"]),
    "endless": (dml(scales=iter(int, 1)), "dml_resample_grad.scales", ["more than 8 values"]),
    "too many axes": (interpolate(sizes=[1] * 4), "interpolate.sizes", ["more than 3 values"]),
    "zero size": (interpolate(sizes=[5, 0]), "interpolate.sizes[1]", ["is 0 (int)", "from 1"]),
    "negative size": (interpolate(sizes=[-1]), "interpolate.sizes[0]", ["is -1", "from 1"]),
    "beyond int64": (interpolate(sizes=[2**63]), "interpolate.sizes[0]", ["2**63 - 1"]),
    "beyond int32": (
        interpolate(sizes_tensor=[2**31]),
        "interpolate.sizes_tensor[0]",
        ["2**31 - 1"],
    ),
    "fraction": (interpolate(sizes=[2.0]), "interpolate.sizes[0]", ["is 2.0 (float)", "integers"]),
    "boolean size": (interpolate(sizes=[True]), "interpolate.sizes[0]", ["is True (bool)"]),
    "two sizes": (
        interpolate(sizes=[4, 5], sizes_tensor=[4, 6]),
        "interpolate.sizes_tensor",
        ["is (4, 6)", "sizes is (4, 5)", "one of them, or equal ones"],
    ),
    "no direction": (
        lambda: ops.DmlResample2(interpolation_mode="nearest"),
        "dml_resample2.rounding_direction",
        ["is missing", "'increasing' or 'decreasing'"],
    ),
    "nothing set": (message(), "", ["is not set", "dml_resample_grad", "interpolate"]),
    "unset mode": (message(interpolate={}), "interpolate.mode", ["is missing", "'bilinear'"]),
    "unknown number": (
        message(dml_resample={"interpolation_mode": 7}),
        "dml_resample.interpolation_mode",
        ["is 7", "DML_INTERPOLATION_MODE_LINEAR = 2"],
    ),
    "negative number": (
        message(dml_resample={"interpolation_mode": LINEAR, "nearest_rounding": -1}),
        "dml_resample.nearest_rounding",
        ["is -1", "DML_NEAREST_ROUNDING_HALF_UP = 2"],
    ),
    "swapped forward": (
        message(dml_resample={"interpolation_mode": LINEAR, "offset_convention": SWAPPED}),
        "dml_resample.offset_convention",
        ["is 'swapped'", "'forward' only"],
    ),
    "unknown convention of a forward": (
        message(dml_resample2={"interpolation_mode": LINEAR, "offset_convention": 3}),
        "dml_resample2.offset_convention",
        ["is 3"],
    ),
    "direction unset": (
        message(dml_resample_grad1={"interpolation_mode": NEAREST}),
        "dml_resample_grad1.rounding_direction",
        ["is missing"],
    ),
    "nan in a message": (
        message(dml_resample={"interpolation_mode": LINEAR, "scales": [1, float("nan")]}),
        "dml_resample.scales[1]",
        ["is nan"],
    ),
    "size in a message": (
        message(interpolate={"mode": 1, "sizes": [-(2**63)]}),
        "interpolate.sizes[0]",
        ["is -9223372036854775808"],
    ),
}


@pytest.mark.parametrize(("make", "path", "words"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_refusal_names_the_attribute_what_came_and_what_would_do(
    make: Callable[[], ops.Operator], path: str, words: list[str]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make()
    error = caught.value
    assert error.field == ("operator." + path).rstrip(".")
    written = path.partition(".")[2] or "operator"
    assert str(error) == f"{written}: {error.description}"
    for word in words:
        assert word in error.description
    assert len(str(error)) < 400
