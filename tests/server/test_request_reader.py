"""A request that is like one before is taken apart as it is without one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire._wire.framing import evaluation_frame, read_evaluation
from gradwire_server.errors import ChecksumError, InvalidDataError
from gradwire_server.rpc.codec import RequestReader

# Few bytes, of which many mean something: several messages have one length.
NAMES = st.sampled_from([b"", b"a", b"ab", b"\x12\x00", b"\x7a", b"x" * 127, b"x" * 128])
HEADERS = st.sampled_from([b"", b"\x12\x00", b"\x12\x01\x0a", b"\x1a\x00", b"\x12\x02\x7a\x01"])
DATA = st.binary(min_size=1, max_size=4)
FRAMES = st.builds(evaluation_frame, NAMES, HEADERS, DATA)


@settings(max_examples=300)
@given(st.lists(FRAMES, min_size=1, max_size=12), st.data())
def test_what_was_read_before_makes_no_difference(frames: list[bytes], draw: st.DataObject) -> None:
    reader = RequestReader()
    for frame in frames:
        assert reader.read(frame)[0] == read_evaluation(frame)
    changed = bytearray(draw.draw(st.sampled_from(frames)))
    changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    told = read_evaluation(bytes(changed))
    if told is not None:
        assert reader.read(bytes(changed)) == (told, None)
    else:
        try:
            anew = RequestReader().read(bytes(changed))
        except (ChecksumError, InvalidDataError):
            anew = None
        try:
            again = reader.read(bytes(changed))
        except (ChecksumError, InvalidDataError):
            again = None
        assert again == anew


def test_headers_that_are_kept_are_bounded() -> None:
    reader = RequestReader()
    for length in range(1, 2000):
        reader.read(evaluation_frame(b"", b"\x12\x00", bytes(length)))
    assert len(reader) <= 256
