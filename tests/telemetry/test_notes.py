"""Notes keep a process' latest errors in memory of a fixed size, for others to read."""

from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.observability.cells import (
    MOST,
    NOTES_BYTES,
    Cells,
    Ledger,
    NotedError,
    Notes,
    newest,
)

HOSTILE = '<script>alert("1")</script> \\ " \x00\ud800 é'


def notes() -> Notes:
    return Notes(memoryview(bytearray(NOTES_BYTES)))


def note(made: Notes, message: str, *, alike: str = "", reason: str = "INVALID_DATA") -> None:
    made.error(
        method="Evaluate",
        operator="interpolate",
        status="INVALID_ARGUMENT",
        reason=reason,
        message=message,
        request_id="r",
        alike=alike,
    )


def messages(made: Notes) -> list[str]:
    return [error.message for error in newest(made.errors())]


def test_nothing_is_told_at_first() -> None:
    made = notes()
    assert made.errors() == []
    assert made.description() == {}


def test_the_latest_errors_are_kept_and_no_more() -> None:
    made = notes()
    for number in range(3 * MOST):
        note(made, str(number))
    assert messages(made) == [str(number) for number in reversed(range(2 * MOST, 3 * MOST))]


def test_an_error_that_comes_again_only_adds_to_its_count() -> None:
    made = notes()
    note(made, "rare")
    for number in range(10_000):
        note(made, f"full; retry after {number} ms", alike="max_queue", reason="OVERLOADED")
    found = {error.message: error for error in made.errors()}
    assert found["rare"].count == 1
    assert found["full; retry after 0 ms"].count == 10_000
    assert len(found) == 2
    assert found["full; retry after 0 ms"].latest >= found["rare"].latest


def test_one_that_lost_its_place_is_another_one_when_it_comes_again() -> None:
    made = notes()
    note(made, "first")
    for number in range(MOST):
        note(made, str(number))
    note(made, "first")
    note(made, "first")
    (first,) = (error for error in made.errors() if error.message == "first")
    assert first.count == 2


@given(st.lists(st.text(max_size=3000), max_size=5), st.text(max_size=6000))
def test_any_text_fits_or_is_cut(texts: list[str], fact: str) -> None:
    made = notes()
    made.describe({"backend": fact})
    for text in texts:
        note(made, text)
    assert len(made.errors()) == len(set(texts))
    for told in messages(made):
        assert any(text.encode("utf-8", "replace").decode().startswith(told) for text in texts)
    assert fact.encode("utf-8", "replace").decode().startswith(made.description()["backend"])


def test_another_process_reads_what_is_whole() -> None:
    shared = mmap.mmap(-1, NOTES_BYTES)
    writer, reader = Notes(memoryview(shared)), Notes(memoryview(shared))
    note(writer, HOSTILE)
    writer.describe({"backend": "numpy_cpu"})
    assert messages(reader) == [HOSTILE.encode("utf-8", "replace").decode()]
    assert reader.description() == {"backend": "numpy_cpu"}


@pytest.mark.parametrize("torn", [b"\x00", b"\xff"])
def test_what_is_half_written_is_left_out(torn: bytes) -> None:
    memory = bytearray(NOTES_BYTES)
    made = Notes(memoryview(memory))
    note(made, "x" * 100)
    at = memory.index(b"x" * 100)
    memory[at + 10 : at + 20] = torn * 10
    assert made.errors() == []


def test_errors_outlive_the_process_that_noted_them() -> None:
    ledger = Ledger("0")
    with ledger.process() as cells:
        assert cells is not None
        theirs = Cells.attached(os.dup(cells.fd))
        assert theirs is not None
        theirs.notes.describe({"backend": "numpy_cpu"})
        note(theirs.notes, "before its end")
        assert ledger.description() == {"backend": "numpy_cpu"}
    assert ledger.description() == {}
    (error,) = ledger.errors()
    assert isinstance(error, NotedError)
    assert error.message == "before its end"
