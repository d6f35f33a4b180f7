"""Every example of every dialect has the same bits on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dialect_tables import EXAMPLES
from gradwire_server.backends import Backend
from support.kernels.backend_calls import applied
from support.oracles import oracles
from support.oracles.dialect_oracles import lowered
from support.oracles.dialect_table import Example


@pytest.mark.parametrize("dtype", oracles.STORAGE_TYPES, ids=str)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))
def test_an_example_has_the_bits_of_the_scalar_loop(
    backend: Backend, example: Example, dtype: np.dtype[Any]
) -> None:
    plan = lowered(example.operator, example.source, example.result, dtype)
    x = example.given(dtype)
    oracles.same_bits(applied(backend, plan, x, dtype), oracles.scalar_apply(plan, x, dtype))
