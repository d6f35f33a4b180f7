"""How many streams a caller may have open, and which gives way where there is no room."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from engine.hall import Hall
from gradwire_server.errors import RETRY_AFTER_S, ServerFullError
from gradwire_server.scheduling.admission import AdmittedStream

MOMENT_S = 0.5


class Opener:
    """Opens streams for as long as a test takes.

    ended  names of those that gave way, and why
    """

    def __init__(self, hall: Hall, stack: ExitStack) -> None:
        self._hall, self._stack = hall, stack
        self.ended: dict[str, ServerFullError] = {}

    def open(self, name: str, *, caller: str = "caller") -> AdmittedStream:
        """Open one; a moment later another one is opened."""
        self._hall.now += 0.01
        context = self._hall.admission.stream(
            caller, lambda refused: self.ended.update({name: refused})
        )
        return self._stack.enter_context(context)


def test_the_stream_that_waited_longest_for_its_first_byte_gives_way() -> None:
    hall = Hall(max_streams=3)
    with ExitStack() as stack:
        opener = Opener(hall, stack)
        opener.open("a").note_data()
        opener.open("b")
        opener.open("c")
        hall.now += MOMENT_S
        opener.open("d")
        assert list(opener.ended) == ["b"]
        refused = opener.ended["b"]
        assert refused.facts["limit"] == "max_streams"
        assert refused.retry_after_s == RETRY_AFTER_S
        assert "no data of this one has come for 0.5 s" in refused.message
        assert hall.admission.streams == 3
        assert hall.admission.refusals == {"max_streams": 1}
    assert hall.admission.streams == 0


def test_each_stream_that_gives_way_is_told_so_itself() -> None:
    hall = Hall(max_streams=1)
    with ExitStack() as stack:
        opener = Opener(hall, stack)
        for name in ("a", "b", "c"):
            opener.open(name)
            hall.now += MOMENT_S
        assert list(opener.ended) == ["a", "b"]


def test_a_stream_has_a_moment_for_its_first_byte() -> None:
    hall = Hall(max_streams=1)
    with ExitStack() as stack:
        opener = Opener(hall, stack)
        opener.open("a")
        hall.now += MOMENT_S - 0.02
        with pytest.raises(ServerFullError):
            opener.open("b")
        opener.open("c")
        assert list(opener.ended) == ["a"]


def test_a_stream_that_waits_for_the_server_does_not_give_way() -> None:
    hall = Hall(max_streams=1)
    with ExitStack() as stack:
        opener = Opener(hall, stack)
        first = opener.open("a")
        first.note_wait(for_caller=False)
        hall.now += 60
        with pytest.raises(ServerFullError):
            opener.open("b")
        first.note_wait(for_caller=True)
        with pytest.raises(ServerFullError):
            opener.open("c")
        hall.now += MOMENT_S
        opener.open("d")
        assert list(opener.ended) == ["a"]


def test_a_caller_has_three_quarters_of_the_streams() -> None:
    hall = Hall(max_streams=8)
    with ExitStack() as stack:
        opener = Opener(hall, stack)
        for number in range(6):
            opener.open(str(number)).note_data()
        with pytest.raises(ServerFullError, match="this caller has 6 streams open, and 6 are its"):
            opener.open("one more")
        for name in ("a", "b"):
            opener.open(name, caller="other").note_data()
        with pytest.raises(ServerFullError, match="8 streams are open"):
            opener.open("c", caller="other")
        assert not opener.ended


def test_a_caller_with_its_share_takes_nothing_from_others() -> None:
    hall = Hall(max_streams=4)
    with ExitStack() as stack:
        opener = Opener(hall, stack)
        opener.open("other's", caller="other")
        hall.now += MOMENT_S
        for name in ("a", "b"):
            opener.open(name).note_data()
        opener.open("c")
        with pytest.raises(ServerFullError):
            opener.open("d")
        hall.now += MOMENT_S
        opener.open("e")
        assert list(opener.ended) == ["c"]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_of_few_streams_a_caller_may_have_all(most: int) -> None:
    hall = Hall(max_streams=most)
    with ExitStack() as stack:
        opener = Opener(hall, stack)
        for number in range(most):
            opener.open(str(number))
        assert hall.admission.streams == most
