"""What is kept and what is let in stays within its bounds."""

import numpy as np
import pytest

from gradwire import ops
from gradwire_server.dialects.dialect import Axis
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TensorSpec
from gradwire_server.errors import RETRY_AFTER_S, ServerFullError
from gradwire_server.lru import Recent
from gradwire_server.plans.sampling import Taps
from gradwire_server.scheduling.admission import Admission


def _halved(size):
    def sample(_size, outputs):
        index = 2 * outputs[:, None]
        return Taps(index, np.ones(index.shape, np.float32))

    return Axis(size, -(-size // 2), 1, sample, (size,))


def test_recent_tables_are_kept_unless_they_are_larger_than_the_cache():
    preparer, small, large = Preparer(Limits(), most_kept=100), _halved(8), _halved(100)
    kept, lost = (preparer.table(axis, gradient=False) for axis in (small, large))
    assert preparer.table(small, gradient=False) is kept
    assert preparer.table(large, gradient=False) is not lost


def test_values_are_kept_within_their_number_and_their_weight():
    recent = Recent(most=2, max_weight=10)
    for key, weight in (("a", 1), ("b", 9), ("b", 2), ("c", 8)):
        recent.keep(key, key.upper(), weight=weight)
    assert ["a" in recent, recent.get("b"), recent.get("c")] == [False, "B", "C"]
    recent.keep("d", "D", weight=3)
    assert ["b" in recent, "c" in recent, recent.get("d")] == [False, False, "D"]
    recent.keep("e", "E", weight=11)
    assert "e" not in recent


def test_memory_is_given_back_however_a_request_ends():
    admission = Admission(max_memory_bytes=100, max_streams=1)
    with admission.memory(60):
        with pytest.raises(ServerFullError) as caught, admission.memory(50):
            pass
        assert caught.value.retry_after_s == RETRY_AFTER_S
        with pytest.raises(KeyError), admission.memory(40):
            raise KeyError
        assert admission.memory_bytes == 60
    assert admission.memory_bytes == 0


def test_a_request_larger_than_the_budget_is_let_in_alone():
    admission = Admission(max_memory_bytes=100, max_streams=1)
    with admission.memory(1000), pytest.raises(ServerFullError), admission.memory(1):
        pass
    assert admission.memory_bytes == 0


def _request(offset, *, rows=4):
    operator = ops.DmlResample(
        interpolation_mode="linear", input_pixel_offsets=(offset,), output_pixel_offsets=(0.0,)
    )
    source, result = (TensorSpec.packed(np.dtype(np.float32), (size,)) for size in (rows, 6))
    return EvaluationRequest(operator.name, operator, source, result)


def test_an_evaluation_is_prepared_once():
    preparer = Preparer(Limits())
    first = preparer.prepare(_request(0.0))
    assert preparer.prepare(_request(0.0)) is first
    assert preparer.prepare(_request(0.0, rows=5)) is not first


def test_zeros_of_both_signs_are_two_requests():
    assert _request(-0.0) == _request(0.0)
    kept, fresh = (Preparer(Limits()) for _ in range(2))
    kept.prepare(_request(0.0))
    assert kept.prepare(_request(-0.0)).digest == fresh.prepare(_request(-0.0)).digest
    assert kept.prepare(_request(-0.0)).digest != kept.prepare(_request(0.0)).digest


def test_a_table_is_another_one_for_the_gradient_and_for_a_zero_of_another_sign():
    def sample(_size, shift, outputs):
        index = outputs[:, None]
        return Taps(index, np.full(index.shape, np.copysign(1.0, shift)))

    plus, minus = (Axis(4, 4, 1, sample, (4, zero)) for zero in (0.0, -0.0))
    assert plus == minus
    preparer, axis = Preparer(Limits()), _halved(8)
    assert preparer.table(plus, gradient=False).weight[0] == 1
    assert preparer.table(minus, gradient=False).weight[0] == -1
    assert preparer.table(axis, gradient=False).outputs == 4
    assert preparer.table(axis, gradient=True).outputs == 8
