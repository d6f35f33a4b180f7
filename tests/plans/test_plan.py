"""Plans: shapes, costs, order and identity."""

import pickle
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.plans import BandedMap, Pass, Plan
from support.kernels.backend_calls import applied
from support.kernels.kernel_maps import linear
from support.oracles import oracles


def test_identities_are_left_out_and_passes_ascend():
    identity = BandedMap.from_blocks([(np.arange(3)[:, None], np.ones((3, 1)))], inputs=3)
    plan = Plan.build([linear(2, 4), identity, None, linear(5, 3)], (2, 3, 9, 5))
    assert [one.axis for one in plan.passes] == [0, 3]
    assert plan.output_shape == (4, 3, 9, 3)


def test_costs_are_exact_beyond_any_machine_integer():
    up, down = linear(2, 4), linear(4, 1)
    plan = Plan.build([None, up, down], (2**70, 2, 4))
    assert (up.nnz, down.nnz) == (6, 2)
    assert plan.work == 2**70 * 4 * up.nnz + 2**70 * 4 * down.nnz
    assert plan.largest_intermediate == 2**70 * 4 * 4
    assert plan.table_entries == (6 + 4 + 2) + (2 + 1 + 4)
    copy = Plan.build([None, None], (3, 4))
    assert (copy.work, copy.largest_intermediate, copy.table_entries) == (0, 0, 0)


@given(data=st.data(), plan=oracles.plans())
def test_a_permuted_plan_does_the_same_to_the_permuted_tensor(data, plan):
    order = data.draw(st.permutations(range(len(plan.input_shape))))
    x = data.draw(oracles.tensors(plan.input_shape, dtype=np.float32))
    stored = plan.permuted(order)
    assert [one.map for one in stored.passes] == [one.map for one in plan.passes]
    result = applied(NumpyCpu(), stored, x.transpose(order), np.float32)
    oracles.same_bits(result, applied(NumpyCpu(), plan, x, np.float32).transpose(order))


def test_a_map_that_does_not_fit_the_shape_is_refused():
    message = r"the map of axis 0 reads 2 inputs; the tensor is \[3, 7\] there"
    with pytest.raises(ValueError, match=message):
        Plan((3, 7), (Pass(0, linear(2, 4)),))


def test_a_digest_is_fed_all_of_a_plan_and_the_same_bytes_everywhere():
    bands = BandedMap(1, 2, np.array([0]), np.array([0, 2]), np.array([0.5, -3]))
    plan = Plan.build([bands, None, bands], (2, 5, 2), fill=-0.0)
    head = struct.pack("<4q4qdq", 3, 2, 5, 2, 3, 1, 5, 1, -0.0, 2)
    table = struct.pack("<q2q2d", 0, 0, 2, 0.5, -3)
    passes = (struct.pack("<4q", axis, 1, 2, 2) + table for axis in (0, 2))
    expected = b"".join((head, *passes))
    for one in (plan, pickle.loads(pickle.dumps(plan))):  # noqa: S301
        fed = []
        one.digest_update(SimpleNamespace(update=lambda data, to=fed: to.append(bytes(data))))
        assert b"".join(fed) == expected
