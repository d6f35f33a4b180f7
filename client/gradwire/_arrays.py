"""Whatever holds numbers to a NumPy array, without a copy where memory allows."""

from __future__ import annotations

import sys
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# DLPack's kDLCPU and kDLCUDAHost, https://dmlc.github.io/dlpack/latest/c_api.html
_HOST_DEVICES = (1, 3)

# Exact overlap of strided memory is a hard problem; beyond this much work bounds alone decide.
_OVERLAP_WORK: Any = 100_000


def to_array(values: object) -> NDArray[Any]:
    """View values as a NumPy array; its type and shape are not judged here.

    values  as gradwire.tensors.as_array takes them

    Raises TypeError, which names the fix, where there is no way.
    """
    if _is_masked(values):
        raise TypeError("a masked array has elements without a value; pass array.filled(value)")
    if isinstance(values, np.ndarray):
        return np.asarray(cast("NDArray[Any]", values))
    try:
        return _convert(values)
    except MemoryError:
        raise
    except Exception as error:
        kind = f"{type(values).__module__}.{type(values).__qualname__}".removeprefix("builtins.")
        raise TypeError(
            f"cannot read a {kind} as an array: {error}; pass a NumPy array or a tensor on the host"
        ) from error


def _is_masked(values: object) -> bool:
    # Only who has imported it can have one, and importing it takes longer than most calls. While
    # another thread imports it the class is not there yet.
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return kind is not None and isinstance(values, kind)


def share_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays may have a byte in common."""
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def _convert(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach") and hasattr(values, "requires_grad"):
        values = values.detach()
    if hasattr(values, "__dlpack_device__") and values.__dlpack_device__()[0] not in _HOST_DEVICES:
        values = _on_host(values)
    if str(getattr(values, "dtype", None)) == "torch.bfloat16":
        # NumPy knows no bfloat16, so that torch hands it over as integers only.
        integer = values.new_empty(0).short().dtype
        return np.asarray(values.view(integer)).view(ml_dtypes.bfloat16)
    if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
        return np.from_dlpack(values)
    return np.asarray(values)


def _on_host(values: Any) -> Any:
    """Copy from a device as its library documents it: torch, CuPy, JAX; others by DLPack."""
    for method in ("cpu", "get"):
        if hasattr(values, method):
            return getattr(values, method)()
    if hasattr(values, "__array__"):
        return values
    return np.from_dlpack(values, device="cpu")
