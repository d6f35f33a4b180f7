"""Cases of the compute benchmark: shapes, operators, arrays, PyTorch's names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gradwire import ops

Array = npt.NDArray[Any]
Kind = Literal["nearest", "linear", "cubic", "dml"]
Layout = Literal["NCX", "NXC"]

LAYOUTS: tuple[Layout, ...] = ("NCX", "NXC")
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

# A prime length keeps equal values far from each other.
_PATTERN = 1_000_003
_CACHE_LINE = 64


class WrongResultError(Exception):
    """Two of our own results have different bits."""


@dataclass(frozen=True, slots=True)
class Case:
    """One gradient, from diff_dst of sizes dst to diff_src of sizes src.

    name           text that --case matches
    kind           interpolation; "dml" is DirectML's linear one, which moves every axis
    src, dst       N, C and the spatial axes, in every layout
    align_corners  the coordinate transformation, else half_pixel
    """

    name: str
    kind: Kind
    src: tuple[int, ...]
    dst: tuple[int, ...]
    align_corners: bool = False

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Layouts that differ for this operator."""
        return ("NCX",) if self.kind == "dml" else LAYOUTS

    def elements(self) -> int:
        """Elements of both tensors."""
        return math.prod(self.src) + math.prod(self.dst)


def _both(name: str, src: tuple[int, ...], dst: tuple[int, ...]) -> list[Case]:
    return [
        Case(f"linear {name}", "linear", src, dst),
        Case(f"nearest {name}", "nearest", src, dst),
    ]


_UNET, _UNET_X2 = (8, 64, 56, 56), (8, 64, 112, 112)
_HD, _HALF_HD = (1, 3, 1080, 1920), (1, 3, 540, 960)

CASES: tuple[Case, ...] = (
    *_both("2-D x2", _UNET, _UNET_X2),
    Case("linear 2-D x2 align_corners", "linear", _UNET, _UNET_X2, align_corners=True),
    Case("cubic 2-D x2", "cubic", _UNET, _UNET_X2),
    *_both("1080p x2", _HALF_HD, _HD),
    *_both("1080p /2", _HD, _HALF_HD),
    *_both("3-D x2", (2, 32, 32, 64, 64), (2, 32, 64, 128, 128)),
    *_both("1-D x2", (16, 256, 4096), (16, 256, 8192)),
    *_both("2-D x1.52", (4, 32, 73, 91), (4, 32, 111, 97)),
    *_both("2-D x8", (4, 32, 28, 28), (4, 32, 224, 224)),
    *_both("2-D /8", (4, 32, 224, 224), (4, 32, 28, 28)),
    *_both("plane x2", (1, 1, 2048, 2048), (1, 1, 4096, 4096)),
    *_both("plane /2", (1, 1, 4096, 4096), (1, 1, 2048, 2048)),
    *_both("photo x2.25", (1, 3, 480, 640), (1, 3, 1080, 1440)),
    *_both("photo /1.5", (1, 3, 1080, 1920), (1, 3, 720, 1280)),
    *_both("photo /4", (1, 3, 3024, 4032), (1, 3, 756, 1008)),
    *_both("tiny planes x2", (10_000, 3, 16, 16), (10_000, 3, 32, 32)),
    Case("dml 4 axes", "dml", (4, 8, 64, 64), (6, 12, 111, 97)),
)


def stored(sizes: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """Return N, C, X sizes in the order of a layout."""
    return sizes if layout == "NCX" else (sizes[0], *sizes[2:], sizes[1])


def logical(array: Array, layout: Layout) -> Array:
    """View an array of a layout with axes N, C, X."""
    return array if layout == "NCX" else np.moveaxis(array, -1, 1)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros at a cache line's start, with every page touched."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    skip = -memory.ctypes.data % _CACHE_LINE
    memory.fill(0)
    return memory[skip : skip + size].view(dtype).reshape(shape)


class Outputs:
    """Arrays for results, kept by name.

    New memory costs more than most calls.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}

    def zeros(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the array of this name, filled with zeros.

        An old result is thus never taken for a new one.
        """
        array = self._kept.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            array = self._kept[name] = empty(shape, dtype)
        array.view(f"u{dtype.itemsize}").fill(0)
        return array


def gradients(
    case: Case, dtype: np.dtype[Any], *, layouts: tuple[Layout, ...] = LAYOUTS
) -> dict[Layout, Array]:
    """Return the same output gradient in several layouts.

    They are every layout of the case, or NCX and given ones.
    """
    pattern = np.random.default_rng(0).normal(size=_PATTERN).astype(np.float32).astype(dtype)
    first = empty(case.dst, dtype)
    flat = first.reshape(-1)
    for offset in range(0, flat.size, _PATTERN):
        flat[offset : offset + _PATTERN] = pattern[: flat.size - offset]
    arrays: dict[Layout, Array] = {"NCX": first}
    if "NXC" in case.layouts and "NXC" in layouts:
        arrays["NXC"] = empty(stored(case.dst, "NXC"), dtype)
        logical(arrays["NXC"], "NXC")[...] = first
    return arrays


def operator_of(case: Case, layout: Layout) -> ops.Operator:
    """Return the gradient's operator.

    The cubic one takes axes in the order N, C, X in any layout.
    """
    if case.kind == "cubic":
        return ops.TorchUpsampleBackward(mode="bicubic")
    if case.kind == "dml":
        return ops.DmlResampleGrad(interpolation_mode="linear")
    return ops.InterpolateBackward(
        mode=case.kind,
        coordinate_transformation_mode="align_corners" if case.align_corners else "half_pixel",
        data_format=layout,
    )


def torch_name(case: Case, spatial: int) -> str:
    """Return the aten operator.

    It is the faster one where both nearest operators mean the same.
    """
    if case.kind != "nearest":
        kind = {1: "linear", 2: "bilinear", 3: "trilinear"}[spatial]
        return f"upsample_{'bicubic' if case.kind == 'cubic' else kind}{spatial}d_backward"
    whole = all(dst % src == 0 for src, dst in zip(case.src, case.dst, strict=True))
    return f"{'' if whole else '_'}upsample_nearest{'' if whole else '_exact'}{spatial}d_backward"


def torch_view(torch: Any, array: Array, layout: Layout) -> Any:
    """View an array as a tensor N, C, X."""
    if array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return in_layout(tensor, layout)


def in_layout(tensor: Any, layout: Layout) -> Any:
    """View a tensor of a layout with axes N, C, X.

    NXC is channels_last; 1-D is viewed as 2-D of height 1.
    """
    if layout == "NCX":
        return tensor
    if tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    return tensor.movedim(-1, 1)
