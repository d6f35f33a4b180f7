"""A LocalClient remembers the calls it has prepared; nobody notices, but for the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire import DeadlineExceededError, GradwireError, ops
from gradwire_server import LocalClient
from gradwire_server.engine import Limits

Array = NDArray[Any]

UP = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
TYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
OPERATORS = (
    UP,
    ops.InterpolateBackward(mode="nearest", data_format="NCX"),
    ops.InterpolateBackward(mode="bilinear", coordinate_transformation_mode="align_corners"),
    ops.Interpolate(mode="linear", data_format="NCX"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
    ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(0.0,) * 4),
    ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(-0.0,) * 4),
)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one evaluate(); the arrays' numbers are made from a seed."""

    operator: ops.Operator
    source: Array
    result_shape: tuple[int, ...]
    out: Array | None

    def outcome(self, client: LocalClient) -> tuple[object, ...]:
        """Evaluate and tell all that comes of it."""
        if self.out is not None and self.out.flags.writeable:
            self.out[...] = 77
        try:
            result = client.evaluate(
                self.operator, self.source, output_shape=self.result_shape, out=self.out
            )
        except (GradwireError, TypeError) as error:
            return type(error), str(error).partition(" (request ")[0]
        assert self.out is None or result is self.out
        return result.dtype, result.shape, result.strides, result.tobytes()


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Draw an array of a shape: permuted, with gaps, backward, either byte order."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    seed = np.random.default_rng(draw(st.integers(0, 1000)))
    wide = [shape[axis] * abs(steps[axis]) for axis in order]
    if dtype.kind == "f" and draw(st.integers(0, 5)) == 0:
        dtype = dtype.newbyteorder(">")
    whole = seed.normal(size=wide).astype(dtype).transpose(np.argsort(order))
    return whole[tuple(slice(None, None, step) for step in steps)]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Draw from so few shapes and layouts that many calls are alike."""
    dtype = draw(st.sampled_from(TYPES))
    source_shape = draw(st.sampled_from([(1, 2, 4, 6), (2, 2, 6, 6)]))
    result_shape = draw(st.sampled_from([(1, 2, 2, 3), (2, 2, 3, 3), (1, 2, 8, 9), (2, 2)]))
    source = draw(layouts(source_shape, dtype))
    if draw(st.integers(0, 4)) == 0:
        source = np.broadcast_to(source[:, :, :1, :1], source_shape)
    out = None
    if draw(st.booleans()):
        out = draw(layouts(result_shape, draw(st.sampled_from([dtype, dtype, dtype, TYPES[0]]))))
        out.flags.writeable = draw(st.integers(0, 5)) > 0
    return Call(draw(st.sampled_from(OPERATORS)), source, result_shape, out)


@pytest.fixture(scope="module", params=[1, 2])
def experienced(request: pytest.FixtureRequest) -> Iterator[dict[int, LocalClient]]:
    """Clients that have seen other calls before, by the size of their slabs."""
    slabs = (1 << 7, 1 << 20)
    made = {
        slab: LocalClient(threads=request.param, limits=Limits(slab_bytes=slab)) for slab in slabs
    }
    yield made
    for client in made.values():
        client.close()


@settings(max_examples=300, deadline=None)
@given(call=calls(), slab=st.sampled_from([1 << 7, 1 << 20]))
def test_a_client_that_knows_the_call_answers_as_one_that_does_not(
    experienced: dict[int, LocalClient], call: Call, slab: int
) -> None:
    with LocalClient(threads=1) as new:
        expected = call.outcome(new)
    assert call.outcome(experienced[slab]) == expected
    assert call.outcome(experienced[slab]) == expected


X = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)


@pytest.mark.parametrize("slab", [1 << 7, 1 << 20])
@pytest.mark.parametrize(
    "part", [np.s_[:, :, 2:6, 1:5], np.s_[:, :, ::2, 1::2], np.s_[:, :, 3::-1, -2:1:-1]]
)
def test_only_the_elements_of_out_are_written(slab: int, part: tuple[slice, ...]) -> None:
    memory = np.full((1, 1, 8, 9), 7.5, np.float32)
    others = np.ones(memory.shape, np.bool_)
    others[part] = False
    out = memory[part][:, :, :, :4]
    with LocalClient(limits=Limits(slab_bytes=slab)) as client:
        expected = client.evaluate(UP, X, output_shape=(1, 1, 4, 4))
        for _ in range(2):
            out[...] = 0
            assert client.evaluate(UP, X, out=out) is out
            np.testing.assert_array_equal(out, expected)
    assert (memory[others] == 7.5).all()


def test_what_only_equals_a_size_is_refused_after_the_size_too() -> None:
    with LocalClient() as client:
        client.evaluate(UP, X, output_shape=(1, 1, 4, 4))
        for size in (True, 1.0):
            with pytest.raises(GradwireError, match=r"output_shape\[1\]"):
                client.evaluate(UP, X, output_shape=(1, size, 4, 4))  # type: ignore[arg-type]


def test_memory_that_became_unfit_for_a_result_is_refused() -> None:
    both = np.ones((1, 1, 12, 8), np.float32)
    out = np.empty((1, 1, 4, 8), np.float32)[..., :4]
    with LocalClient() as client:
        client.evaluate(UP, both[:, :, :8], out=out)
        with pytest.raises(GradwireError, match="shares memory"):
            client.evaluate(UP, both[:, :, :8], out=both[:, :, 6:10, :4])
        out.flags.writeable = False
        with pytest.raises(GradwireError, match="read-only"):
            client.evaluate(UP, both[:, :, :8], out=out)


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_written_to_out_after_a_deadline(threads: int) -> None:
    x = np.ones((1, 4, 512, 512), np.float32)
    outs = [np.zeros((1, 4, 256, 256), np.float32) for _ in range(20)]
    left: list[Array] = []
    with LocalClient("numpy_cpu", threads, limits=Limits(slab_bytes=1 << 20)) as client:
        for out in outs:
            with pytest.raises(DeadlineExceededError):
                client.evaluate(UP, x, out=out, timeout_s=1e-9)
            left.append(out.copy())
    np.testing.assert_array_equal(outs, left)
    assert not np.all(left)
