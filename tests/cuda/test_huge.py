"""The CUDA kernels find their way in tensors of more than 2**31 numbers."""

from __future__ import annotations

import math

import pytest

from support.kernels import cuda_device, cuda_huge
from support.kernels.cuda_backends import needs_cuda_packages, needs_simulator
from support.kernels.cuda_huge import Huge

pytestmark = [needs_simulator, needs_cuda_packages]


@pytest.mark.parametrize("huge", cuda_huge.huge(), ids=lambda huge: huge.name)
def test_the_end_of_a_huge_tensor_has_the_bits_of_numpy(
    huge: Huge, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Then the last blocks of every kernel are those that write the end.
    monkeypatch.setattr("gradwire_server.backends.cuda.launches._MOST_LOOPED", 2**31 - 1)
    sizes = map(math.prod, (huge.plan.input_shape, huge.plan.output_shape))
    assert max(sizes) > 2**31
    huge.check(cuda_device.compiled())


def test_the_end_of_huge_rows_has_the_bits_of_numpy() -> None:
    cuda_huge.check_huge_rows(cuda_device.compiled())
