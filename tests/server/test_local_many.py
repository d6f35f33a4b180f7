"""evaluate_many in this process does what it does over a socket."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from gradwire import Client, InvalidRequestError, Item, ops
from gradwire_server import LocalClient

BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
GIVEN = [
    np.random.default_rng(seed).normal(size=(1, 2, 2 * size, 2 * size)).astype(np.float32)
    for seed, size in enumerate((1, 3, 8, 300, 8))
]
ITEMS = [Item(BILINEAR, each, (1, 2, each.shape[2] // 2, each.shape[3] // 2)) for each in GIVEN]


def test_results_are_those_of_evaluate() -> None:
    with LocalClient() as client:
        wanted = [client.evaluate(i.op, i.array, output_shape=i.output_shape) for i in ITEMS]
        for result, each in zip(client.evaluate_many(ITEMS), wanted, strict=True):
            np.testing.assert_array_equal(result, each)
        pairs = list(client.evaluate_many(ITEMS, ordered=False))
    assert [index for index, _ in pairs] == list(range(len(ITEMS)))
    for index, result in pairs:
        np.testing.assert_array_equal(result, wanted[index])


def test_an_error_is_raised_at_its_item_and_the_others_go_on() -> None:
    bad: list[Any] = [ITEMS[0], (BILINEAR, GIVEN[0], (1, 1)), GIVEN[0], ITEMS[1]]
    with LocalClient() as client:
        results = client.evaluate_many(bad)
        next(results)
        with pytest.raises(InvalidRequestError, match="output") as caught:
            next(results)
        assert (results.index, caught.value.__notes__) == (1, ["item 1 of evaluate_many"])
        with pytest.raises(TypeError, match="an item is a ndarray"):
            next(results)
        assert next(results).shape == ITEMS[1].output_shape
        with pytest.raises(StopIteration):
            next(results)


def test_items_are_taken_when_results_are_asked_for() -> None:
    taken = iter(ITEMS)
    with LocalClient() as client, client.evaluate_many(taken) as results:
        next(results)
        assert next(taken) is ITEMS[1]
    assert list(results) == []
    assert next(taken) is ITEMS[2]


@pytest.mark.parametrize("most", [0, 1.5, True])
def test_it_refuses_what_a_client_refuses(most: Any) -> None:
    with LocalClient() as client, pytest.raises(InvalidRequestError, match="max_in_flight: is"):
        client.evaluate_many([], max_in_flight=most)


def test_it_takes_the_same_arguments() -> None:
    local, client = (
        inspect.signature(kind.evaluate_many).parameters for kind in (LocalClient, Client)
    )
    assert local == client
