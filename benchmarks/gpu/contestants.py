"""Contestants of the GPU benchmark: our kernels, PyTorch's, a device copy.

All are ready to run: their input and output tensors exist on the device. All run on one stream, so
that the marks around a run give its time on the device.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.compute.cases import (
    DTYPES,
    Array,
    Layout,
    WrongResultError,
    in_layout,
    logical,
    stored,
    torch_name,
    torch_view,
)
from benchmarks.compute.native import UnavailableError
from benchmarks.gpu.cases import GpuRow, additions, ends
from benchmarks.gpu.streams import Block, DeviceStream, put
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.programs import Buffer, X, Y
from gradwire_server.plans import Plan


@dataclass(frozen=True, slots=True)
class GpuContestant:
    """One way to compute a row.

    run     starts it once; returns before it is done
    result  images part.start .. part.stop - 1 of its output, axes in the order N, C, X; None
            if there is nothing to compare
    note    name of the implementation
    """

    name: str
    run: Callable[[], object]
    result: Callable[[slice], Array] | None = None
    note: str = ""


def ours(stream: DeviceStream, row: GpuRow, plan: Plan, x: Array) -> GpuContestant:
    """Return the launches that the backend would make of the plan."""
    program = dispatch.program(
        plan,
        x.dtype,
        x.dtype,
        outer=math.prod(plan.input_shape[: dispatch.outer_axes(plan)]),
        multiprocessors=stream.multiprocessors,
    )
    shape = plan.output_shape
    y = stream.empty(int(np.prod(shape)) * x.dtype.itemsize)
    blocks: dict[Buffer, Block] = {X: put(stream, [x])[0], Y: y}
    blocks |= zip(program.tables, put(stream, list(program.tables.values())), strict=True)
    blocks |= {place: stream.empty(nbytes) for place, nbytes in program.scratch.items()}
    addresses = {buffer: block.address for buffer, block in blocks.items()}

    def run() -> object:
        for launch in program.launches:
            stream.launch(launch, addresses)
        return blocks  # kept as long as this function

    def result(part: slice) -> Array:
        array = np.empty((part.stop - part.start, *shape[1:]), x.dtype)
        stream.read(y, array, offset=part.start * array[0].nbytes)
        return logical(array, row.layout)

    kernels = [launch.kernel for launch in program.launches]
    return GpuContestant("ours", run, result, " + ".join(kernels))


def copy(stream: DeviceStream, row: GpuRow) -> GpuContestant:
    """Copy half as many bytes as the row moves.

    So the copy reads and writes as many bytes as the row.
    """
    target, source = (stream.empty(row.nbytes // 2) for _ in range(2))
    run = partial(stream.copy, target, source)
    return GpuContestant("copy", run, note=f"{row.nbytes // 2} bytes read and written")


def torch_backward(stream: DeviceStream, row: GpuRow, x: Array) -> GpuContestant:
    """Return the aten operator, writing to a given tensor.

    It includes neither autograd nor allocation.
    """
    torch = _torch(row)
    case = row.case
    # bicubic writes as if its result were contiguous, for any layout of the gradient.
    layout: Layout = "NCX" if case.kind == "cubic" else row.layout
    gradient = torch_view(torch, x, row.layout).to(stream.torch_device)
    y = in_layout(_zeros(torch, stream, row, stored(case.src, layout)), layout)
    spatial = gradient.ndim - 2
    kernel = torch_name(case, spatial)
    flags = [] if case.kind == "nearest" else [case.align_corners]
    operator = getattr(torch.ops.aten, kernel).grad_input
    arguments = [gradient, list(gradient.shape[2:]), list(y.shape), *flags, *[None] * spatial]
    run = partial(operator, *arguments, grad_input=y)
    return GpuContestant("torch", run, partial(_images, row, y), kernel)


def torch_deterministic(stream: DeviceStream, row: GpuRow, x: Array) -> GpuContestant:
    """Return PyTorch's gradient in deterministic mode, through autograd.

    That mode has another forward, whose backward adds in a fixed order; only bilinear has one. New
    memory is not filled beforehand, which the mode does by default.
    """
    torch = _torch(row)
    case = row.case
    if case.kind != "linear" or len(case.src) != 4:
        raise UnavailableError("PyTorch has no deterministic path, or no other one, for it")
    gradient = torch_view(torch, x, row.layout).to(stream.torch_device)
    zeros = _zeros(torch, stream, row, stored(case.src, row.layout))
    source = in_layout(zeros, row.layout).requires_grad_()
    torch.utils.deterministic.fill_uninitialized_memory = False
    interpolate = partial(
        torch.nn.functional.interpolate,
        size=list(case.dst[2:]),
        mode="bilinear",
        align_corners=case.align_corners,
    )
    with _Deterministic(torch):
        made = interpolate(source)

    def run() -> Any:
        with _Deterministic(torch):
            return torch.autograd.grad(made, source, gradient, retain_graph=True)[0]

    def result(part: slice) -> Array:
        return _images(row, run(), part)

    return GpuContestant("deterministic", run, result, "autograd of interpolate()")


class _Deterministic:
    """Makes PyTorch compute deterministically inside a block."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __enter__(self) -> None:
        self._torch.use_deterministic_algorithms(mode=True)

    def __exit__(self, *_: object) -> None:
        self._torch.use_deterministic_algorithms(mode=False)


def _torch(row: GpuRow) -> Any:
    if row.case.kind == "dml":
        raise UnavailableError("PyTorch has no operator that resamples every axis")
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise UnavailableError(f"torch cannot be imported: {error}") from error


def _zeros(torch: Any, stream: DeviceStream, row: GpuRow, shape: tuple[int, ...]) -> Any:
    dtype = getattr(torch, DTYPES[row.dtype].name)
    return torch.zeros(shape, dtype=dtype, device=stream.torch_device)


def _images(row: GpuRow, tensor: Any, part: slice) -> Array:
    """Return some images of a tensor, with axes N, C, X.

    The additional axis of 1-D tensors in NXC is removed.
    """
    some = tensor.detach()[part].cpu().contiguous()
    # NumPy's own types have no bfloat16.
    bits = some.view(_torch(row).int16) if row.dtype == "bfloat16" else some
    array: Array = bits.numpy().view(DTYPES[row.dtype])
    return array.reshape(array.shape[0], *row.case.src[1:])


# Tolerance, as a part of the largest value: PyTorch rounds coordinates elsewhere.
_COORDINATES = 5e-4


def check(row: GpuRow, x: Array, contestants: Sequence[GpuContestant]) -> dict[str, str]:
    """Compare the first image and the last.

    Returns the contestants with other results, and their differences.

    x  output gradient, in the row's layout

    Raises WrongResultError if ours is not NumPy's to the bit.
    """
    found: dict[str, str] = {}
    for part, plan in ends(row):
        expected = np.empty(plan.output_shape, x.dtype)
        NumpyCpu().apply(plan, x if row.case.kind == "dml" else x[part], expected)
        wanted = logical(expected, row.layout)
        for one in contestants:
            if one.result is None or one.name in found:
                continue
            got = one.result(part)
            if one.name != "ours":
                if apart := _apart(got, wanted, terms=additions(plan)):
                    found[one.name] = apart
            elif got.tobytes() != wanted.tobytes():
                raise WrongResultError(f"{row}: ours and numpy_cpu differ in images {part}")
    return found


def _apart(got: Array, wanted: Array, *, terms: int) -> str:
    """Return a result's error as text, if it exceeds rounding.

    Each sum may be rounded.
    """
    wide = wanted.astype(np.float32)
    largest = float(np.abs(wide).max())
    allowed = (_COORDINATES + terms * float(np.spacing(wanted.dtype.type(1))) / 2) * largest
    apart = float(np.abs(got.astype(np.float32) - wide).max())
    if apart <= allowed:
        return ""
    return f"its result is {apart:.3g} away from ours; {allowed:.3g} is rounding"
