"""How calls of the CUDA backend are cut: every slice and every byte once, and none too large."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gradwire_server.backends.cuda import parts

sizes = st.integers(1, 1 << 40)


@given(outer=st.integers(1, 1 << 31), slice_bytes=sizes, most=sizes)
@example(outer=1, slice_bytes=1 << 40, most=1)
@example(outer=1 << 31, slice_bytes=2, most=1 << 24)
def test_a_part_has_no_more_bytes_than_it_may_unless_one_slice_has(
    outer: int, slice_bytes: int, most: int
) -> None:
    slices = parts.slices_of_part(outer, slice_bytes, most_bytes=most)
    assert 1 <= slices <= outer
    assert slices == 1 or slices * slice_bytes <= most


@given(outer=st.integers(1, 1 << 31), slice_bytes=sizes, most=sizes)
def test_small_calls_stay_whole_and_large_ones_are_shared_by_streams(
    outer: int, slice_bytes: int, most: int
) -> None:
    slices = parts.slices_of_part(outer, slice_bytes, most_bytes=most)
    total = outer * slice_bytes
    if total <= most and total < 2 * parts.LEAST_BYTES:
        assert slices == outer
    if outer > 1 and total >= 2 * parts.LEAST_BYTES:
        assert slices < outer


@given(outer=st.integers(1, 500), slices=st.integers(1, 500))
def test_parts_are_all_slices_in_order_and_of_two_lengths_at_most(outer: int, slices: int) -> None:
    cut = list(parts.ranges(outer, slices))
    assert [one for first, stop in cut for one in range(first, stop)] == list(range(outer))
    assert {stop - first for first, stop in cut[:-1]} <= {slices}


@given(count=st.integers(1, 1 << 20))
def test_a_program_for_several_is_less_than_twice_as_large(count: int) -> None:
    assert count <= parts.padded(count) < 2 * count
    assert len({parts.padded(one) for one in range(1, 65)}) == 7


@given(sizes=st.lists(st.integers(0, 300)), most=st.integers(1, 100))
def test_pieces_are_all_bytes_in_order_and_full(sizes: list[int], most: int) -> None:
    cut = list(parts.pieces(sizes, most=most))
    bytes_of = [(one.array, at) for piece in cut for one in piece for at in range(*one[1:])]
    assert bytes_of == [(array, at) for array, size in enumerate(sizes) for at in range(size)]
    lengths = [sum(one.nbytes for one in piece) for piece in cut]
    assert all(length == most for length in lengths[:-1])
    assert all(0 < length <= most for length in lengths)
