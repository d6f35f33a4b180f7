"""Memory that was registered: which arrays lie in it, and for how long."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire_server.backends.cuda.registered import Registered


def test_only_arrays_wholly_inside_and_in_order_are_copied_straight() -> None:
    registered = Registered()
    buffer = bytearray(4096)
    memory = np.frombuffer(buffer, np.uint8)[512:3584]
    registered.add(memory)
    whole = np.frombuffer(buffer, np.float32)
    inside = whole[128:896]
    assert registered.owner_of(inside) is memory
    assert registered.owner_of(inside.reshape(3, 4, 64)[1:]) is memory
    for outside in (
        whole,
        whole[127:896],
        whole[128:897],
        inside[::2],
        inside.reshape(24, 32).T,
        np.ones(9),
    ):
        assert registered.owner_of(outside) is None


def test_memory_is_forgotten_once_it_is_gone_and_lasts_while_it_is_held() -> None:
    registered = Registered()
    buffer = bytearray(4096)
    memory = np.frombuffer(buffer, np.uint8)
    registered.add(memory)
    other = np.frombuffer(bytearray(64), np.uint8)
    registered.add(other)
    array = np.frombuffer(buffer, np.float64)
    owner = registered.owner_of(array)
    del memory
    assert registered.owner_of(array) is owner
    del owner
    assert registered.owner_of(array) is None
    assert registered.owner_of(other[1:]) is other


@pytest.mark.parametrize("count", [0, 1, 5])
def test_each_of_several_is_found(count: int) -> None:
    registered = Registered()
    memories = [np.zeros(64, np.uint8) for _ in range(count)]
    for one in memories:
        registered.add(one)
    assert all(registered.owner_of(one.view(np.int32)) is one for one in memories)
