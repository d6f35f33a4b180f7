"""Equal requests share what was prepared for the first of them."""

from __future__ import annotations

import numpy as np

from gradwire import ops
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TableCache, TensorSpec

FLOAT32 = np.dtype(np.float32)


def _request(offset: float, *, rows: int = 4) -> EvaluationRequest:
    operator = ops.DmlResample(
        interpolation_mode="linear", input_pixel_offsets=(offset,), output_pixel_offsets=(0.0,)
    )
    source, result = (TensorSpec.packed(FLOAT32, (size,)) for size in (rows, 6))
    return EvaluationRequest(operator.name, operator, source, result)


def test_an_evaluation_is_prepared_once() -> None:
    preparer = Preparer(Limits(), TableCache(max_entries=1000))
    first = preparer.prepare(_request(0.0))
    assert preparer.prepare(_request(0.0)) is first
    assert preparer.prepare(_request(0.0, rows=5)) is not first


def test_zeros_of_both_signs_are_two_requests() -> None:
    assert _request(-0.0) == _request(0.0)
    kept, fresh = (Preparer(Limits(), TableCache(max_entries=1000)) for _ in range(2))
    kept.prepare(_request(0.0))
    assert kept.prepare(_request(-0.0)).digest == fresh.prepare(_request(-0.0)).digest
    assert kept.prepare(_request(-0.0)).digest != kept.prepare(_request(0.0)).digest
