"""What the fuzzers have found to reach most, and bytes drawn and made of it, break no law."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.run import NAMES, read
from fuzz.targets import TARGETS
from support.examples import examples


def test_every_target_has_a_corpus():
    assert set(NAMES) == set(TARGETS)
    assert all(read(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_breaks_no_law(name):
    for data in read(name):
        TARGETS[name](data)


@st.composite
def crossed(draw, name):
    """Join parts of what is kept of a target, with other bytes between."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kept = draw(KEPT[name])
        ends = sorted((draw(st.integers(0, len(kept))), draw(st.integers(0, len(kept)))))
        parts += [kept[slice(*ends)], draw(BETWEEN)]
    return b"".join(parts)


KEPT = {name: st.sampled_from(read(name)) for name in NAMES}
BETWEEN = st.just(b"") | st.binary(max_size=3)


@pytest.mark.parametrize("name", NAMES)
@examples(150)
@given(data=st.data())
def test_what_is_made_of_it_breaks_no_law(name, data):
    TARGETS[name](data.draw(crossed(name)))
