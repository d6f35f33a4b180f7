"""Contestants of the compute benchmark: LocalClient, PyTorch, oneDNN, a copy loop.

A contestant is ready to run: its arrays exist and nothing is converted, allocated or compiled while
it is timed. All read the same output gradient, each in its own layout, and each writes an array of
its own.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.compute.cases import (
    Array,
    Case,
    Layout,
    Outputs,
    WrongResultError,
    logical,
    operator_of,
    stored,
    torch_name,
    torch_view,
)
from benchmarks.compute.native import Libraries, UnavailableError
from gradwire_server import LocalClient


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to compute a case.

    run     computes once
    result  array it wrote, axes in the order N, C, X; None if there is nothing to compare
    note    name of the implementation
    close   frees memory and handles outside Python
    """

    name: str
    run: Callable[[], object]
    result: Array | None
    note: str = ""
    close: Callable[[], object] = int


@dataclass(frozen=True, slots=True)
class Gradient:
    """Input of all contestants of one layout.

    x        output gradient, axes in the order of the layout
    threads  how many may compute
    outputs  where results go
    """

    case: Case
    layout: Layout
    x: Array
    threads: int
    outputs: Outputs

    def output(self, name: str, *, layout: Layout | None = None) -> Array:
        """Return an array for one contestant's input gradient."""
        shape = stored(self.case.src, layout or self.layout)
        return self.outputs.zeros(name, shape, self.x.dtype)


def ours(given: Gradient, client: LocalClient, backend: str) -> Contestant:
    """Return LocalClient as a contestant, with out=."""
    name = f"{backend} {given.layout}"
    y = given.output(name)
    result = logical(y, given.layout)
    operator, x, out = operator_of(given.case, given.layout), given.x, y
    if given.case.kind == "cubic":
        x, out = logical(x, given.layout), result
    run = partial(client.evaluate, operator, x, output_shape=out.shape, out=out)
    run()  # the first call makes tables
    return Contestant(name, run, result)


# Tolerance, as a part of the largest value. Peers round coordinates elsewhere, and some round sums
# to the storage type.
_TOLERANCES = {"float32": 5e-4, "float16": 4e-3, "bfloat16": 3e-2}


def check_ours(ours: Sequence[Contestant]) -> Array:
    """Return our result; raise WrongResultError if calls differ."""
    results = [one.result for one in ours if one.result is not None]
    expected = results[-1]
    bits = f"u{expected.dtype.itemsize}"
    for one, result in zip(ours, results, strict=True):
        if not np.array_equal(result.view(bits), expected.view(bits)):
            raise WrongResultError(f"the results of {one.name} and {ours[-1].name} differ")
    return expected


def differing(peers: Sequence[Contestant], expected: Array) -> dict[str, str]:
    """Return each peer with another result, and its error."""
    wide = _widened(expected)
    allowed = _TOLERANCES[expected.dtype.name] * float(np.abs(wide).max())
    found: dict[str, str] = {}
    for one in peers:
        if one.result is None:
            continue
        apart_each = _widened(one.result).reshape(wide.shape) - wide
        apart = float(np.abs(apart_each, out=apart_each).max())
        if not apart <= allowed:
            found[one.name] = f"its result is {apart:.3g} away from ours; {allowed:.3g} is rounding"
    return found


def _widened(array: Array) -> Array:
    """Convert to float32.

    A bfloat16 is the upper half of a float32, and NumPy's own conversion is slow.
    """
    if array.dtype.name != "bfloat16":
        return array.astype(np.float32)
    bits = array.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def torch_peer(given: Gradient) -> Contestant:
    """Return the aten operator, writing to a given tensor.

    It includes neither autograd nor allocation.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise UnavailableError(
            "torch is not installed; pip install --group peers brings it"
        ) from None
    case = given.case
    if case.kind == "dml":
        raise UnavailableError("PyTorch has no operator that resamples every axis")
    torch.set_num_threads(given.threads)
    # bicubic writes as if its result were contiguous, for any layout of the gradient.
    layout: Layout = "NCX" if case.kind == "cubic" else given.layout
    name = f"torch {given.layout}"
    y = given.output(name, layout=layout)
    gradient = torch_view(torch, given.x, given.layout)
    result = torch_view(torch, y, layout)
    spatial = gradient.ndim - 2
    kernel = torch_name(case, spatial)
    flags = [] if case.kind == "nearest" else [case.align_corners]
    operator = getattr(torch.ops.aten, kernel).grad_input
    arguments = [gradient, list(gradient.shape[2:]), list(result.shape), *flags, *[None] * spatial]
    run = partial(operator, *arguments, grad_input=result)
    return Contestant(name, run, logical(y, layout), kernel)


def onednn_peer(given: Gradient, libraries: Libraries) -> Contestant:
    """Return oneDNN's resampling primitive, made beforehand."""
    library, case = libraries.onednn, given.case
    if library is None:
        raise UnavailableError(libraries.missing["onednn"])
    if case.kind not in {"linear", "nearest"} or case.align_corners:
        raise UnavailableError("oneDNN has no such operator")
    name = f"onednn {given.layout}"
    y = given.output(name)
    message = ctypes.create_string_buffer(500)
    rank = len(case.src)
    library.onednn_threads(given.threads)
    handle = library.onednn_new(
        case.kind == "nearest",
        {"float16": 1, "bfloat16": 2, "float32": 3}[given.x.dtype.name],
        given.layout == "NXC",
        rank,
        (ctypes.c_long * rank)(*case.src),
        (ctypes.c_long * rank)(*case.dst),
        y.ctypes.data,
        given.x.ctypes.data,
        message,
        len(message),
    )
    if not handle:
        raise UnavailableError(f"oneDNN: {message.value.decode()}")

    def run() -> None:
        if library.onednn_run(handle):
            raise RuntimeError("oneDNN failed")

    note = library.onednn_implementation(handle).decode()
    close = partial(library.onednn_free, handle)
    return Contestant(name, run, logical(y, given.layout), note, close)


def copy_loop(given: Gradient, libraries: Libraries) -> Contestant:
    """Return a copy of as many bytes on as many threads."""
    if libraries.copy is None:
        raise UnavailableError(libraries.missing["copy"])
    y = given.output("copy")
    arguments = (given.x.ctypes.data, given.x.nbytes // 8, y.ctypes.data, y.nbytes // 8)
    run = partial(libraries.copy.copy_loop, *arguments, given.threads)
    return Contestant("copy", run, None, f"{given.x.nbytes} bytes read, {y.nbytes} written")
