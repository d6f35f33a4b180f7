"""openvino_interpolate and its gradient: the bits of OpenVINO's reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import openvino_node
from conformance.openvino_node import table_here
from conformance.rows import Tally
from gradwire import ops
from gradwire_server import dialects
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix, evaluate, lowered

STORED = list(axis_tables.load(openvino_node.STORED))


def told(shape: tuple[int, ...], **attributes: Any) -> tuple[int, ...] | None:
    operator = ops.OpenvinoInterpolate(mode="linear", **attributes)
    return dialects.output_shape(operator.name, operator, shape)


@pytest.fixture(scope="module")
def openvino() -> Any:
    return pytest.importorskip("openvino", reason="compares with OpenVINO where it is there")


@pytest.mark.parametrize(
    ("case", "table"),
    STORED,
    ids=[f"{i}-{case.attributes['mode']}" for i, (case, _) in enumerate(STORED)],
)
def test_stored_tables_of_openvino_hold_bit_by_bit(case: AxisCase, table: Matrix) -> None:
    np.testing.assert_array_equal(table_here(case), table)


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("add", [openvino_node.add_reference, openvino_node.add_plugin])
def test_the_reference_has_these_tables_and_the_cpu_plugin_but_for_what_it_ignores(
    add: Callable[[Tally], None],
) -> None:
    tally = Tally()
    add(tally)
    tally.check()


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("mode", openvino_node.MODES)
@pytest.mark.parametrize(
    "told",
    [
        {"sizes": (9, 4)},
        {"shape_calculation_mode": "scales", "scales": (1.7, 0.4)},
    ],
    ids=str,
)
def test_whole_images_are_the_reference_implementation_s(mode: Any, told: dict[str, Any]) -> None:
    # One axis grows while the other shrinks, width comes before height where the reference can do
    # that, and other axes are padded where the mode allows.
    axes = (3, 2) if mode in {"nearest", "linear", "cubic"} else (2, 3)
    pads: dict[str, Any] = {"pads_begin": (1, 0, 2), "pads_end": (0, 1, 0, 1)}
    if mode == "linear_onnx":
        pads = {}
    operator = ops.OpenvinoInterpolate(mode=mode, axes=axes, antialias=True, **told, **pads)
    image = np.random.default_rng(4).standard_normal((2, 3, 8, 5), np.float32)
    expected = openvino_node.reference(operator, image)
    result = evaluate(operator, image, expected.shape)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2.0**-20)


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("mode", ["bilinear_pillow", "bicubic_pillow"])
def test_descending_axes_of_pillow_are_the_cpu_plugin_s(mode: Any) -> None:
    operator = ops.OpenvinoInterpolate(mode=mode, axes=(3, 2), sizes=(9, 4), cube_coeff=-0.5)
    image = np.random.default_rng(4).standard_normal((2, 3, 8, 5), np.float32)
    result = evaluate(operator, image, (2, 3, 4, 9))
    expected = openvino_node.plugin(operator, image)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2.0**-18)


def test_padding_is_zeros_that_are_resampled_too() -> None:
    operator = ops.OpenvinoInterpolate(
        mode="linear", axes=(0,), sizes=(9,), pads_begin=(1, 2), pads_end=(2,)
    )
    x = np.random.default_rng(2).standard_normal((4, 3), np.float32)
    result = evaluate(operator, x, (9, 5))
    padded = np.pad(x, [(1, 2), (2, 0)])
    plain = ops.OpenvinoInterpolate(mode="linear", axes=(0,), sizes=(9,))
    np.testing.assert_array_equal(result, evaluate(plain, padded, (9, 5)))


def test_antialias_stretches_every_axis_by_its_scale_where_one_shrinks() -> None:
    # Scale 4 makes the triangle a quarter as wide: outputs far from any element read nothing.
    operator = ops.OpenvinoInterpolate(mode="linear", antialias=True, sizes=(8, 3))
    result = evaluate(operator, np.ones((2, 6), np.float32), (8, 3))
    np.testing.assert_array_equal(result[:, 1], [0, 1, 1, 0, 0, 1, 1, 0])


def test_lengths_are_sizes_or_scaled_padded_lengths() -> None:
    assert told((2, 3), sizes=(5, 4)) == (5, 4)
    assert told((2, 3), sizes=(5, 4), axes=(1, 0)) == (4, 5)
    scales = {"shape_calculation_mode": "scales"}
    assert told((2, 3), scales=(2.5,), axes=(1,), pads_begin=(1,), **scales) == (3, 7)
    # 0.1 in float32 is above 0.1; 1 / 3 is below, which the 1e-6 makes up for.
    assert told((10, 3), scales=(0.1, 1 / 3), **scales) == (1, 1)


def test_a_tiny_scale_reads_the_last_element() -> None:
    # X / scale is beyond float32 for all but the first output.
    scale = float(np.float32(1e-40))
    operator = ops.OpenvinoInterpolate(
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        shape_calculation_mode="scales",
        scales=(scale,),
    )
    length = 2_000_000
    plan = lowered(operator, (length,), (2,))
    (only,) = plan.passes
    assert only.map.start.tolist() == [0, length - 1]
