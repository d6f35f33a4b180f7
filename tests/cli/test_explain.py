"""`gradwire explain`: its tables are those that evaluations use, and its pictures are drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dialect_tables import EXAMPLES
from gradwire import ops
from gradwire.cli import pictures
from gradwire.cli.explain import AxisTable, call, tables
from support.command_line import run_here
from support.oracles.dialect_oracles import lowered

DOUBLED = (
    *("explain", "--op", "interpolate_backward", "--attr", "mode=linear"),
    *("--attr", "data_format=NCX", "--input-shape", "1,1,4", "--output-shape", "1,1,2"),
)
LONG = (
    *("explain", "--op", "interpolate", "--attr", "mode=nearest", "--attr", "sizes=1000"),
    *("--input-shape", "1,2000,1", "--axis", "1"),
)


def check_coordinates(operator: ops.Operator, axis: AxisTable) -> None:
    """Every dialect tells them but for bins, and each output reads less than two inputs off."""
    if getattr(operator, "mode", None) == "area":
        assert axis.coordinates is None or axis.is_identity
        return
    assert axis.coordinates is not None, operator
    assert axis.coordinates.shape == (axis.outputs,)
    for output, x in enumerate(np.clip(axis.coordinates, 0, axis.inputs - 1)):
        read, weights = axis.taps(output, of_input=False)
        if weights.any():
            assert read[0] - 1 <= x <= read[-1] + 1, (operator, output)


def test_limits_are_raised_by_the_variables_that_a_refusal_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"GRADWIRE_MAX_FLOAT32_AXIS": "1999", "GRADWIRE_MAX_TABLE_ENTRIES": "3999"}
    for name, low in limits.items():
        monkeypatch.setenv(name, low)
        refused = run_here(*LONG)
        assert (refused.code, refused.stdout) == (4, "")
        assert f"raise {name} " in refused.stderr
        assert "this server" not in refused.stderr
        monkeypatch.setenv(name, str(int(low) + 1))
        assert run_here(*LONG).code == 0
    monkeypatch.setenv("GRADWIRE_MAX_TABLE_ENTRIES", "many")
    refused = run_here(*LONG)
    assert refused.code == 1
    assert "GRADWIRE_MAX_TABLE_ENTRIES is 'many'; a whole number" in refused.stderr


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_are_those_that_evaluations_use_for_every_operator(dtype: type) -> None:
    examples = [*EXAMPLES.values()]
    calls = [call(each.operator, np.dtype(dtype), each.source, each.result) for each in examples]
    for each, told in zip(examples, tables(calls), strict=True):
        plan = lowered(each.operator, each.source, each.result, dtype)
        matrices = {one.axis: one.map.dense() for one in plan.passes}
        gradient = each.operator.gradient
        for number, axis in enumerate(told.axes):
            matrix = np.zeros((axis.outputs, axis.inputs))
            matrix[axis.rows, axis.columns] = axis.weight
            expected = matrices.get(number, np.eye(each.result[number]))
            np.testing.assert_array_equal(matrix.T if gradient else matrix, expected)
            np.testing.assert_allclose(axis.totals, matrix.sum(axis=0))
            check_coordinates(each.operator, axis)
            for place in range(axis.inputs):
                outputs, weights = axis.taps(place, of_input=True)
                np.testing.assert_array_equal(matrix[outputs, place], weights)
                assert not np.delete(matrix[:, place], outputs).any()


def test_coordinates_taps_and_weights_are_printed_by_output_and_by_input() -> None:
    done = run_here(*DOUBLED)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.endswith(
        """
axis 2: 2 inputs, 4 outputs, 6 weights

  output  coordinate  reads inputs  with weights
       0       -0.25             0  1
       1        0.25           0-1  0.75 0.25
       2        0.75           0-1  0.25 0.75
       3        1.25             1  1

  input  total weight  is read by outputs  with weights
      0             2                 0-2  1 0.75 0.25
      1             2                 1-3  0.25 0.75 1
"""
    )
    facts = json.loads(run_here(*DOUBLED, "--json").stdout)
    assert facts["axes"][2] == {
        "axis": 2,
        "inputs": 2,
        "outputs": 4,
        "identity": False,
        "coordinates": [-0.25, 0.25, 0.75, 1.25],
        "start": [0, 0, 0, 1],
        "weights": [[1.0], [0.75, 0.25], [0.25, 0.75], [1.0]],
        "total_weight": [2.0, 2.0],
    }
    assert (facts["gradient"], facts["forward"]) == (True, "interpolate")
    done = run_here(
        *("explain", "--op", "dml_resample", "--attr", "interpolation_mode=linear"),
        *("--attr", "scales=1e-38", "--input-shape", "2", "--output-shape", "40", "--json"),
    )
    # As protobuf writes it.
    assert json.loads(done.stdout)["axes"][0]["coordinates"][-1] == "Infinity"


def test_the_middle_of_a_long_table_is_left_out_unless_all_is_asked_for() -> None:
    short = run_here(*LONG, "--rows", "4").stdout.splitlines()
    assert "  ... 996 more: --rows 0 prints all, so does --json" in short
    assert "  1000 inputs that no output reads: 0 2 4 ... 994 more ... 1994 1996 1998" in short
    assert len(short) < 30
    assert len(run_here(*LONG, "--rows", "0").stdout.splitlines()) > 3000


def axis(inputs: int, bands: list[tuple[int, list[float]]]) -> AxisTable:
    counts = [len(weights) for _, weights in bands]
    weights = np.array([weight for _, each in bands for weight in each], np.float64)
    start, ends = np.array([start for start, _ in bands]), np.cumsum([0, *counts])
    # Some dialects tell no coordinates.
    coordinates = None if inputs == 2000 else np.linspace(-1, inputs, len(bands))
    return AxisTable(inputs, len(bands), start, ends, weights, coordinates)


AXES = {
    "one element": axis(1, [(0, [1])]),
    "2 elements, negative weights": axis(2, [(0, [1.1, -0.1]), (0, [0.5, 0.5]), (0, [-0.1, 1.1])]),
    "an output reads nothing": axis(3, [(0, []), (0, [0.5, 0.5]), (2, [])]),
    "no output reads anything": axis(3, [(0, []), (0, [])]),
    "2000 elements": axis(2000, [(place, [0.25, 0.75]) for place in range(1999)]),
    "2000 elements to 2": axis(2000, [(0, [1e-3] * 1000), (1000, [1e-3] * 1000)]),
    "2 elements to 2000": axis(2, [(place // 1000, [1]) for place in range(2000)]),
    "descending": axis(5, [(4 - place, [1]) for place in range(5)]),
}


def test_any_axis_can_be_drawn(tmp_path: Path) -> None:
    for name, each in AXES.items():
        pictures.draw({name: each}, title="an axis", path=tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    for ending, begins in (("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"axes.{ending}"
        done = run_here(*DOUBLED, "--output", path)
        assert (done.code, done.stderr) == (0, "")
        assert done.stdout.endswith(f"\nWrote {path}\n")
        assert path.read_bytes().startswith(begins)


@pytest.mark.parametrize("arguments", [("demo",), (*DOUBLED, "--output", "x.png")])
def test_without_matplotlib_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "gradwire.cli.pictures", raising=False)
    monkeypatch.delattr("gradwire.cli.pictures", raising=False)
    done = run_here(*arguments)
    assert done.code == 1
    assert 'pip install "gradwire[plot]"' in done.stderr
