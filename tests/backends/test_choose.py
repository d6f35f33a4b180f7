"""The choice of a backend."""

from __future__ import annotations

import pytest

from gradwire_server import backends


@pytest.mark.parametrize("name", ["auto", "numpy_cpu"])
def test_a_choice_comes_with_its_name_and_reason(name: str) -> None:
    backend, reason = backends.choose(name)
    assert backend.name == "numpy_cpu"
    assert "numpy_cpu" in reason


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match='"cuda" came; "auto" or "numpy_cpu" would do'):
        backends.choose("cuda")
