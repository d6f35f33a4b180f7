"""What the fuzzers have found to reach most, and bytes drawn and made of it, break no law."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import corpus
from fuzz.run import NAMES
from fuzz.targets import TARGETS


def test_every_target_has_a_corpus() -> None:
    assert set(NAMES) == set(TARGETS)
    assert all(corpus.read(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_breaks_no_law(name: str) -> None:
    for data in corpus.read(name):
        TARGETS[name](data)


@st.composite
def crossed(draw: st.DrawFn, kept: list[bytes]) -> bytes:
    """Join parts of what is kept, with other bytes between."""
    parts = st.sampled_from(kept).flatmap(
        lambda data: st.tuples(st.integers(0, len(data)), st.integers(0, len(data))).map(
            lambda ends: data[min(ends) : max(ends)]
        )
    )
    return b"".join(draw(st.lists(parts | st.binary(max_size=3), max_size=4)))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_made_of_it_breaks_no_law(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(crossed(corpus.read(name))))
