"""Whom the compute benchmark compares with: PyTorch, oneDNN and a copy loop."""

from __future__ import annotations

import ctypes
import importlib
from functools import partial
from typing import Any

from bench.cases import Layout, logical
from bench.contestants import Contestant, Gradient
from bench.native import Libraries, UnavailableError
from bench.torch_names import torch_name, torch_view


def torch_peer(given: Gradient) -> Contestant:
    """Take the aten operator itself, writing to a given tensor: no autograd, no allocation."""
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
    # Whatever the gradient's layout, bicubic writes as if its result were contiguous.
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
    """Make oneDNN's resampling primitive beforehand."""
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
    """Read as many bytes and write as many, on as many threads."""
    if libraries.copy is None:
        raise UnavailableError(libraries.missing["copy"])
    y = given.output("copy")
    arguments = (given.x.ctypes.data, given.x.nbytes // 8, y.ctypes.data, y.nbytes // 8)
    run = partial(libraries.copy.copy_loop, *arguments, given.threads)
    return Contestant("copy", run, None, f"{given.x.nbytes} bytes read, {y.nbytes} written")
