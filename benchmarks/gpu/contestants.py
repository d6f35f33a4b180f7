"""Contestants of the GPU benchmark: our kernels, PyTorch's, and a copy within the device.

All are ready to run: their tensors lie on the device and what they write to exists. All are asked
for on one lane, so that the marks around a run tell its time on the device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.compute.cases import (
    DTYPES,
    Array,
    Layout,
    in_layout,
    logical,
    stored,
    torch_name,
    torch_view,
)
from benchmarks.compute.native import UnavailableError
from benchmarks.gpu.cases import Job, additions, ends
from benchmarks.gpu.lanes import Block, Lane, put
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.programs import Buffer
from gradwire_server.plans import Plan


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to compute a job.

    run     asks for it once; returns before it is done
    result  images part.start .. part.stop - 1 of what it wrote, axes in the order N, C, X; None
            where there is nothing to compare
    note    what it is
    """

    name: str
    run: Callable[[], object]
    result: Callable[[slice], Array] | None = None
    note: str = ""


def ours(lane: Lane, job: Job, plan: Plan, x: Array) -> Contestant:
    """Take the launches that the backend would make of the plan."""
    program = dispatch.program(plan, x.dtype, x.dtype, multiprocessors=lane.multiprocessors)
    shape = plan.output_shape
    y = lane.empty(int(np.prod(shape)) * x.dtype.itemsize)
    blocks: dict[Buffer, Block] = {Buffer("x"): put(lane, [x])[0], Buffer("y"): y}
    for number, block in enumerate(put(lane, program.tables)):
        blocks[Buffer("table", number)] = block
    for number, nbytes in enumerate(program.scratch):
        blocks[Buffer("scratch", number)] = lane.empty(nbytes)
    addresses = {buffer: block.address for buffer, block in blocks.items()}

    def run() -> object:
        for launch in program.launches:
            lane.launch(launch, addresses)
        return blocks  # kept as long as this function is

    def result(part: slice) -> Array:
        array = np.empty((part.stop - part.start, *shape[1:]), x.dtype)
        lane.read(y, array, offset=part.start * array[0].nbytes)
        return logical(array, job.layout)

    kernels = [launch.kernel.expression for launch in program.launches]
    return Contestant("ours", run, result, " + ".join(kernels))


def copy(lane: Lane, job: Job) -> Contestant:
    """Read half as many bytes as the job moves, and write the other half."""
    target, source = (lane.empty(job.nbytes // 2) for _ in range(2))
    run = partial(lane.copy, target, source)
    return Contestant("copy", run, note=f"{job.nbytes // 2} bytes read and written")


def torch_backward(lane: Lane, job: Job, x: Array) -> Contestant:
    """Take the aten operator itself, writing to a given tensor: no autograd, no allocation."""
    torch = _torch(job)
    case = job.case
    # Whatever the gradient's layout, bicubic writes as if its result were contiguous.
    layout: Layout = "NCX" if case.kind == "cubic" else job.layout
    gradient = torch_view(torch, x, job.layout).to(lane.torch_device)
    y = in_layout(_zeros(torch, lane, job, stored(case.src, layout)), layout)
    spatial = gradient.ndim - 2
    kernel = torch_name(case, spatial)
    flags = [] if case.kind == "nearest" else [case.align_corners]
    operator = getattr(torch.ops.aten, kernel).grad_input
    arguments = [gradient, list(gradient.shape[2:]), list(y.shape), *flags, *[None] * spatial]
    run = partial(operator, *arguments, grad_input=y)
    return Contestant("torch", run, partial(_images, job, y), kernel)


def torch_deterministic(lane: Lane, job: Job, x: Array) -> Contestant:
    """Take autograd's way through what PyTorch computes when it must be deterministic.

    That has another forward, whose backward adds in a fixed order; only bilinear has one. New
    memory is not filled beforehand, which that mode does by default.
    """
    torch = _torch(job)
    case = job.case
    if case.kind != "linear" or len(case.src) != 4:
        raise UnavailableError("PyTorch has no deterministic path, or no other one, for it")
    gradient = torch_view(torch, x, job.layout).to(lane.torch_device)
    zeros = _zeros(torch, lane, job, stored(case.src, job.layout))
    source = in_layout(zeros, job.layout).requires_grad_()
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
        return _images(job, run(), part)

    return Contestant("deterministic", run, result, "autograd of interpolate()")


class _Deterministic:
    """PyTorch computes deterministically inside a block."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __enter__(self) -> None:
        self._torch.use_deterministic_algorithms(mode=True)

    def __exit__(self, *_: object) -> None:
        self._torch.use_deterministic_algorithms(mode=False)


def _torch(job: Job) -> Any:
    if job.case.kind == "dml":
        raise UnavailableError("PyTorch has no operator that resamples every axis")
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise UnavailableError(f"torch cannot be imported: {error}") from error


def _zeros(torch: Any, lane: Lane, job: Job, shape: tuple[int, ...]) -> Any:
    dtype = getattr(torch, DTYPES[job.dtype].name)
    return torch.zeros(shape, dtype=dtype, device=lane.torch_device)


def _images(job: Job, tensor: Any, part: slice) -> Array:
    """Return some images of a tensor N, C, X, without the axis that 1-D of NXC has more."""
    array: Array = tensor.detach()[part].cpu().contiguous().numpy()
    return array.reshape(array.shape[0], *job.case.src[1:])


# Of the largest value: PyTorch's coordinates are rounded elsewhere.
_COORDINATES = 5e-4


class WrongResultError(Exception):
    """Ours has other bits than NumPy."""


def check(job: Job, x: Array, contestants: Sequence[Contestant]) -> dict[str, str]:
    """Compare the first image and the last; return who computed something else, and what.

    x  output gradient, in the job's layout

    Raises WrongResultError where ours is not NumPy's to the bit.
    """
    found: dict[str, str] = {}
    for part, plan in ends(job):
        expected = np.empty(plan.output_shape, x.dtype)
        NumpyCpu().apply(plan, x if job.case.kind == "dml" else x[part], expected)
        wanted = logical(expected, job.layout)
        for one in contestants:
            if one.result is None or one.name in found:
                continue
            got = one.result(part)
            if one.name != "ours":
                if apart := _apart(got, wanted, terms=additions(plan)):
                    found[one.name] = apart
            elif got.tobytes() != wanted.tobytes():
                raise WrongResultError(f"{job}: ours and numpy_cpu differ in images {part}")
    return found


def _apart(got: Array, wanted: Array, *, terms: int) -> str:
    """Say how far off a result is if that is more than rounding: each sum may be rounded."""
    wide = wanted.astype(np.float32)
    largest = float(np.abs(wide).max())
    allowed = (_COORDINATES + terms * float(np.finfo(wanted.dtype).eps) / 2) * largest
    apart = float(np.abs(got.astype(np.float32) - wide).max())
    if apart <= allowed:
        return ""
    return f"its result is {apart:.3g} away from ours; {allowed:.3g} is rounding"
