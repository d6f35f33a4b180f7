"""Items of evaluate_many that are too large for its stream, among others that are not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gradwire import Client, ops
from support.clients import BILINEAR, ONCE, Collect, both_clients, either_way
from support.serving import ServerThread, serving

ONE_TRY = {"retry": ONCE}
LARGE = np.random.default_rng(1).normal(size=(1, 1, 512, 512)).astype(np.float32)


# A stream for the small ones and another one for a large one would be one too many.
@pytest.fixture(scope="module", params=[1, 64])
def server(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    with serving(max_streams=request.param) as server:
        yield server


pytestmark = pytest.mark.usefixtures("nothing_is_held_on_the_server")


@both_clients
@either_way
def test_large_tensors_are_evaluated_among_small_ones(
    server: ServerThread, collect: Collect, *, ordered: bool
) -> None:
    sizes = [4, 512, 8, 512, 512, 4, 4]
    items = [(BILINEAR, LARGE[..., :n, :n], (1, 1, n // 2, n // 2)) for n in sizes]
    outcomes = collect(server.address, items, ordered=ordered, options=ONE_TRY)
    assert sorted(index for index, _ in outcomes) == list(range(len(sizes)))
    assert not ordered or [index for index, _ in outcomes] == list(range(len(sizes)))
    with Client(server.address) as client:
        for index, result in outcomes:
            op, array, shape = items[index]
            wanted = client.evaluate(op, array, output_shape=shape)
            np.testing.assert_array_equal(np.asarray(result), wanted)


@both_clients
@pytest.mark.parametrize("spread", [False, True], ids=["plain", "broadcast"])
def test_a_result_that_turns_out_to_be_large_is_fetched_by_a_stream(
    server: ServerThread, collect: Collect, *, spread: bool
) -> None:
    enlarge = ops.Interpolate(mode="nearest", scales=(160.0, 160.0), data_format="NCX")
    array = np.random.default_rng(2).normal(size=(1, 1, 8, 8)).astype(np.float32)
    if spread:
        array = np.broadcast_to(array[:, :, :1], array.shape)
    items = [(enlarge, array), (BILINEAR, array, (1, 1, 4, 4)), (enlarge, array)]
    with Client(server.address) as client:
        wanted = client.evaluate(enlarge, array)
        for index, result in collect(server.address, items, options=ONE_TRY):
            assert isinstance(result, np.ndarray)
            assert index == 1 or result.tobytes() == wanted.tobytes()
