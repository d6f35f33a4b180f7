"""Errors of CUDA: which of them end the use of a device in this process."""

from __future__ import annotations

# cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY.
OUT_OF_MEMORY = 2
# cudaErrorNoDevice.
NO_DEVICE = 100

# Of these CUDA's documentation says that every later call gives the same error until the process
# ends, or they tell of hardware, a context or a server between that is gone. The driver's errors
# have the runtime's numbers.
_LASTING = frozenset(
    (
        *(3, 4, 46),  # no initialization, unloading, devices unavailable
        *(NO_DEVICE, 101, 201),  # no device, invalid device, invalid context
        *(214, 220, 226),  # uncorrectable ECC, uncorrectable NVLink, contained
        *(700, 702, 709, 710),  # illegal address, launch timeout, context destroyed, assert
        *(714, 715, 716),  # hardware stack error, illegal instruction, misaligned address
        *(717, 718, 719, 721),  # invalid address space, invalid pc, launch failure, tensor memory
        *(806, 810, 911, 999),  # lost MPS server, client ended by it, external device, unknown
    )
)


def is_lasting(status: int) -> bool:
    """Whether nothing more can be done on the device in this process after such an error."""
    return status in _LASTING
