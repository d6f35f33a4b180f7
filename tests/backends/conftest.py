"""The backends whose laws are tested."""

from __future__ import annotations

import pytest

from gradwire_server import backends
from gradwire_server.backends import Backend
from numba_here import needs_numba


@pytest.fixture(scope="session", params=["numpy_cpu", pytest.param("numba_cpu", marks=needs_numba)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return each backend in turn, on one thread, ready to compute."""
    chosen, _ = backends.choose(request.param)
    chosen.warm_up()
    return chosen
