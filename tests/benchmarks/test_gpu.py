"""The GPU benchmark without a GPU: what it counts and judges; all of it on a simulated device."""

from __future__ import annotations

import json
import math
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.compute.cases import CASES, DTYPES, Case, Layout, WrongResultError
from benchmarks.gpu import report
from benchmarks.gpu.cases import (
    GpuRow,
    Numbers,
    additions,
    ends,
    gradient,
    grown,
    rows,
    shrunk,
    tiny_rows,
)
from benchmarks.gpu.contestants import GpuContestant, check
from benchmarks.gpu.costs import Cost, pays_from, sizes
from benchmarks.gpu.machines import SimulatedMachine
from benchmarks.gpu.report import GpuRecord
from benchmarks.gpu.run import GpuPace, Run
from gradwire_server.backends import NumpyCpu
from support.kernels.cuda_backends import needs_cuda_packages, needs_simulator

MIB = 1 << 20


def _row(name: str, *, layout: Layout = "NCX", dtype: str = "float32") -> GpuRow:
    (case,) = (case for case in CASES if case.name == name)
    return GpuRow(shrunk(case), layout, dtype)


def _record(name: str, layout: str, dtype: str, **seconds: float) -> GpuRecord:
    (case,) = (case for case in CASES if case.name == name)
    times = {contestant: [value] * 3 for contestant, value in seconds.items()}
    sizes_ = (list(case.src), list(case.dst))
    return GpuRecord(case.name, case.kind, *sizes_, dtype, 1000, times, {}, {}, layout)


def test_every_row_moves_as_much_as_was_asked_for_and_less_than_a_case_more() -> None:
    cases = {case.name: case for case in CASES}
    for row in rows(nbytes=512 * MIB):
        wanted = 128 * MIB if row.case.kind == "dml" else 512 * MIB
        spare = cases[row.case.name].elements() * DTYPES[row.dtype].itemsize
        assert wanted <= row.nbytes < wanted + spare, row
    assert {row.case.name for row in rows(nbytes=1)} == cases.keys()


@pytest.mark.parametrize(("dtype", "each"), [("float32", 20), ("float16", 10)])
def test_doubling_moves_five_numbers_for_each_result(dtype: str, each: int) -> None:
    row = GpuRow(grown(CASES[0], nbytes=MIB, itemsize=4), "NXC", dtype)
    assert row.nbytes == each * math.prod(row.case.src)


def test_tiny_rows_keep_kind_and_scale() -> None:
    by_name = {case.name: case for case in CASES}
    for row in tiny_rows():
        case = by_name[row.case.name]
        assert row.case.elements() < 200_000
        small, large = (np.divide(one.dst, one.src) for one in (row.case, case))
        np.testing.assert_allclose(small, large, rtol=0.1)


def test_the_ends_of_a_row_are_what_the_whole_of_it_gives_there() -> None:
    for name in ("linear 2-D x1.52", "cubic 2-D x2", "nearest 1-D x2", "dml 4 axes"):
        for layout in _row(name).case.layouts:
            row = _row(name, layout=layout)
            x = Numbers().filled(row.shapes[0], "float32")
            whole = np.empty(row.shapes[1], np.float32)
            NumpyCpu().apply(row.plan, x, whole)
            for part, plan in ends(row):
                y = np.empty(plan.output_shape, np.float32)
                NumpyCpu().apply(plan, x if name.startswith("dml") else x[part], y)
                assert y.tobytes() == whole[part].tobytes()


def test_numbers_are_the_same_however_many_were_asked_for_before() -> None:
    numbers = Numbers()
    first = numbers.filled((3, 5), "float16").copy()
    longer = numbers.filled((1_000_004,), "float16")
    assert longer[0] == longer[1_000_003]
    assert numbers.filled((3, 5), "float16").tobytes() == first.tobytes()
    assert longer[:15].tobytes() == first.tobytes()


def test_a_result_is_a_sum_of_as_many_terms_as_its_bands_have() -> None:
    case = Case("", "linear", (1, 1, 8, 8), (1, 1, 64, 64))
    assert additions(gradient(case, "NCX")) == 16 * 16
    case = Case("", "nearest", (1, 1, 8, 8), (1, 1, 16, 64))
    assert additions(gradient(case, "NCX")) == 2 * 8


def test_another_bit_of_ours_is_an_error_and_a_peer_beyond_rounding_is_told() -> None:
    row = _row("linear 2-D x2", dtype="float16")
    x = Numbers().filled(row.shapes[0], row.dtype)
    right = np.empty(row.shapes[1], x.dtype)
    NumpyCpu().apply(row.plan, x, right)
    last_bit = right.view(np.uint16) ^ (np.arange(right.size).reshape(right.shape) == 7)
    near, far = last_bit.astype(np.uint16).view(np.float16), right * np.float16(1.5)

    def of(name: str, y: np.typing.NDArray[np.float16]) -> GpuContestant:
        return GpuContestant(name, int, lambda part: y[part])

    assert not check(row, x, [of("ours", right), of("torch", near)])
    assert "away from ours" in check(row, x, [of("ours", right), of("torch", far)])["torch"]
    with pytest.raises(WrongResultError, match="linear 2-D x2"):
        check(row, x, [of("ours", near)])


@pytest.mark.parametrize(
    ("name", "layout", "dtype", "wanted"),
    [
        ("linear 2-D x2", "NCX", "float32", {"of copy, x2": 0.85, "over torch": 2.0}),
        ("nearest plane x2", "NXC", "float32", {"of copy, x2": 0.85}),
        ("linear 2-D x2", "NXC", "float16", {"of copy, x2": 0.7, "over torch": 5.0}),
        ("nearest 2-D x8", "NCX", "float16", {"of copy, x2": 0.7}),
        ("nearest 2-D x8", "NCX", "bfloat16", {"of copy, x2": 0.7}),
        ("nearest 2-D x8", "NXC", "float16", {"of copy": 0.5}),
        ("linear 2-D x8", "NCX", "float32", {"of copy": 0.5, "over torch": 2.0}),
        ("linear 2-D x2 align_corners", "NCX", "float32", {"of copy": 0.5, "over torch": 2.0}),
        ("linear 3-D x2", "NCX", "float16", {"of copy": 0.5, "over torch": 5.0}),
        ("linear 3-D x2", "NXC", "bfloat16", {"of copy": 0.5, "over torch": 5.0}),
        ("cubic 2-D x2", "NXC", "float32", {"of copy": 0.5, "over torch": 2.0}),
        ("linear 1-D x2", "NCX", "float32", {"of copy": 0.5}),
        ("nearest 2-D /8", "NCX", "float32", {"of copy": 0.5}),
    ],
)
def test_every_row_has_the_targets_that_are_about_it(
    name: str, layout: str, dtype: str, wanted: dict[str, float]
) -> None:
    record = _record(name, layout, dtype, ours=1.0, copy=0.6, torch=4.0)
    judged = {one.target: one for one in report.verdicts(record)}
    assert {target: one.wanted for target, one in judged.items()} == wanted
    for target, one in judged.items():
        reached = 4.0 if target == "over torch" else 0.6
        assert one.reached == pytest.approx(reached)
        assert one.holds == (reached >= wanted[target])


def test_a_line_and_the_summary_say_what_is_missed() -> None:
    held = _record("linear 2-D x2", "NCX", "float32", ours=1.0, copy=0.9, torch=3.0)
    missed = _record("linear 2-D x2", "NXC", "float32", ours=1.0, copy=0.8, deterministic=9.0)
    assert report.line(held).endswith("  ok")
    assert report.line(missed).endswith("miss of copy, x2 0.85, miss over deterministic 10")
    text = "\n".join(report.summary([held, missed]))
    assert "of copy, x2: 1 of 2 hold" in text
    assert "0.80 of  0.85  linear 2-D x2, float32 NXC" in text


def test_the_size_from_which_a_device_pays_is_the_least_after_which_it_always_does() -> None:
    def costs(*gpu: float) -> list[Cost]:
        return [
            Cost("apply", 4**index, {"cuda": [value], "cpu": [1.0]})
            for index, value in enumerate(gpu)
        ]

    assert pays_from(costs(2, 2, 0.5, 0.5), "cuda", "cpu") == 16
    assert pays_from(costs(0.5, 2, 0.5), "cuda", "cpu") == 16
    assert pays_from(costs(0.5, 2, 0.5, 1), "cuda", "cpu") is None
    assert pays_from(costs(0.5, 0.5), "cuda", "cpu") == 1


def test_requests_have_the_sizes_they_are_named_by() -> None:
    found = list(sizes(smallest=1 << 14, largest=1 << 20))
    assert [4 * math.prod(case.dst) for case in found] == [1 << 14, 1 << 16, 1 << 18, 1 << 20]


@needs_simulator
@pytest.mark.parametrize("name", ["linear 2-D x2", "cubic 2-D x2", "nearest 3-D x2"])
def test_all_of_it_runs_on_a_simulated_device(name: str, tmp_path: Path) -> None:
    machine = SimulatedMachine()
    run = Run(machine, machine.stream(), GpuPace(rounds=2, warm=1), seconds=300, case=name)
    records = list(run.kernels())
    assert len(records) == 3 * 2
    for record in records:
        assert {"ours", "copy"} <= record.seconds.keys()
        known = {"ours", "copy", "torch", "deterministic"}
        assert record.seconds.keys() | record.skipped.keys() == known
        numbers = math.prod(record.src) + math.prod(record.dst)
        assert record.nbytes == DTYPES[record.dtype].itemsize * numbers
    if name == "linear 2-D x2":
        run.from_host_memory()
        assert {cost.way for cost in run.costs} == {"apply", "request"}
    assert not run.broken
    run.write(tmp_path / "out" / "gpu.json", {})
    found = json.loads((tmp_path / "out" / "gpu.json").read_text(encoding="utf-8"))
    assert report.load(found) == records


@needs_simulator
def test_a_row_that_breaks_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimulatedMachine()
    stream = machine.stream()
    rows_ = [_row("linear 2-D x2"), GpuRow(CASES[0], "NCX", "no type"), _row("nearest 2-D x2")]
    monkeypatch.setattr(machine, "rows", lambda: rows_)
    run = Run(machine, stream, GpuPace(rounds=1, warm=1), seconds=300)
    assert [record.case for record in run.kernels()] == ["linear 2-D x2", "nearest 2-D x2"]
    assert [one.partition(",")[0] for one in run.broken] == ["linear 2-D x2"]


CUPY = """
    RawModule.get_function cuda.Device.use cuda.Event.record cuda.Memory
    cuda.get_elapsed_time cuda.nvrtc.getVersion cuda.runtime.deviceSynchronize
    cuda.runtime.driverGetVersion cuda.runtime.getDeviceProperties cuda.runtime.memcpy
    cuda.runtime.memcpyAsync cuda.runtime.memcpyDeviceToDevice cuda.runtime.runtimeGetVersion
"""


@needs_cuda_packages
def test_cupy_has_everything_that_is_called_on_a_device() -> None:
    cupy = import_module("cupy")
    for path in CUPY.split():
        assert attrgetter(path)(cupy) is not None, path
