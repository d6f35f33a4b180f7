"""Tensors of other libraries are viewed where memory allows, and copied from devices."""

from __future__ import annotations

import sys
from array import array as typed_array
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire.tensors import describe, to_array

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CUDA, CUDA_HOST = 2, 3


class Exporter:
    """What a library exports: the given protocols only."""

    def __init__(self, **protocols: Any) -> None:
        for name, value in protocols.items():
            setattr(self, name, value)


class ByArray(Exporter):
    """A tensor that converts itself."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return VALUES


class ByDlpack(Exporter):
    """A tensor with DLPack alone, on some device, which may copy itself to the host."""

    device: tuple[int, int] = (1, 0)
    copies = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None, **_: Any) -> Any:
        if self.device[0] == CUDA and not (self.copies and dl_device == (1, 0)):
            raise BufferError("the memory is on a CUDA device")
        return VALUES.__dlpack__()


class DeviceArray(ByDlpack):
    """An array as CuPy has it: no implicit way to the host."""

    device = (CUDA, 0)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


HOST_EXPORTERS = {
    "__array__": ByArray(),
    "__array_interface__": Exporter(__array_interface__=VALUES.__array_interface__),
    "DLPack": ByDlpack(),
    "DLPack on pinned memory": ByDlpack(device=(CUDA_HOST, 0)),
    "the buffer protocol": VALUES.data,
    "a matrix": VALUES.reshape(6, 4).view(np.matrix),
    "a memmap's view": VALUES.view(np.memmap),
}


@pytest.mark.parametrize("exporter", HOST_EXPORTERS.values(), ids=list(HOST_EXPORTERS))
def test_memory_of_the_host_is_viewed(exporter: Any) -> None:
    array = to_array(exporter)
    assert type(array) is np.ndarray
    assert np.shares_memory(array, VALUES)
    assert array.reshape(-1).tolist() == VALUES.reshape(-1).tolist()


DEVICE_EXPORTERS = {
    "as torch": DeviceArray(cpu=lambda: VALUES),
    "as CuPy": DeviceArray(get=lambda: VALUES),
    "as JAX": ByArray(__dlpack_device__=lambda: (CUDA, 0)),
}


@pytest.mark.parametrize("exporter", DEVICE_EXPORTERS.values(), ids=list(DEVICE_EXPORTERS))
def test_memory_of_a_device_is_copied_as_its_library_documents(exporter: Any) -> None:
    assert to_array(exporter).tolist() == VALUES.tolist()


@pytest.mark.skipif(np.__version__.startswith("2.0"), reason="NumPy 2.0 asks no device for a copy")
def test_memory_of_a_device_is_copied_by_dlpack() -> None:
    assert to_array(ByDlpack(device=(CUDA, 0), copies=True)).tolist() == VALUES.tolist()


def fail() -> None:
    raise RuntimeError("lost device")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (ByDlpack(device=(CUDA, 0)), r"ByDlpack .* pass a NumPy array or a tensor on"),
        (DeviceArray(cpu=fail), "lost device; pass a NumPy array"),
        (np.ma.masked_invalid([1.0, np.nan]), r"pass array\.filled"),
        ([[1.0, 2.0], [3.0]], "cannot read a list as an array"),
    ],
    ids=["no way to the host", "a fault of the library", "masked", "unequal lengths"],
)
def test_what_cannot_be_read_is_refused_with_the_fix(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        to_array(given)
    assert isinstance(caught.value.__cause__, RuntimeError) or "lost" not in words


def test_lack_of_memory_stays_what_it_is() -> None:
    def exhausted() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        to_array(DeviceArray(cpu=exhausted))


def test_a_gradient_is_detached_from_its_graph() -> None:
    tensor = SimpleNamespace(requires_grad=True, detach=lambda: VALUES)
    assert to_array(tensor) is VALUES


def test_a_typed_array_of_python_is_taken() -> None:
    assert to_array(typed_array("d", [1, 2])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bfloat16"])
def test_torch_tensors_of_every_type_and_layout_are_viewed(name: str) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    tensor = torch.arange(24, dtype=getattr(torch, name)).reshape(2, 3, 4).requires_grad_()
    for shown in (tensor, tensor.permute(2, 0, 1), tensor[:, ::2], tensor[:1].expand(5, 3, 4)):
        array = to_array(shown)
        assert array.dtype == np.dtype(getattr(ml_dtypes, name, name))
        assert array.strides == tuple(array.itemsize * stride for stride in shown.stride())
        assert array.astype(float).tolist() == shown.double().tolist()
        assert array.ctypes.data == shown.data_ptr()


def test_torch_tensors_without_memory_are_refused_with_the_fix() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    with pytest.raises(TypeError, match=r"torch\.Tensor as an array.*pass a NumPy array"):
        to_array(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("name", ["float16", "float32", "bfloat16"])
def test_jax_arrays_of_every_type_are_taken(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy", exc_type=ImportError)
    array = to_array(jnp.ones((2, 3), getattr(jnp, name)))
    assert array.dtype == np.dtype(getattr(ml_dtypes, name, name))
    assert array.astype(float).tolist() == [[1.0] * 3] * 2


def test_a_broadcast_torch_gradient_travels_as_one_element() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    assert list(describe(to_array(torch.ones(()).expand(4, 5))).strides) == [0, 0]


def test_arrays_are_read_while_another_thread_imports_masked_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))
    assert to_array([[1.0, 2.0]]).shape == (1, 2)
