"""Threads transfer the shares of a split, and one whose servers fail leaves its share to others."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from gradwire import GradwireError, OverloadedError
from gradwire._transport.streams import SplitTry

FULL = OverloadedError("full")


@dataclass(eq=False)
class Share:
    """A share that fails until it may succeed."""

    may: threading.Event = field(default_factory=threading.Event)
    complete: bool = False
    begun: int = 0
    waits: list[bool] = field(default_factory=list[bool])

    def wait(self, *, waits: bool) -> None:
        self.waits.append(waits)


class Stream:
    """A try of a share that has ended."""

    opened = True

    def __init__(self, share: Share) -> None:
        share.begun += 1
        share.complete = share.may.is_set()
        self._error = None if share.complete else FULL
        self.ended = threading.Event()

    def start(self) -> None:
        self.ended.set()

    def outcome(self) -> GradwireError | None:
        return self._error

    def trailers(self) -> tuple[()]:
        return ()

    def cancel(self) -> None: ...


def run(shares: list[Share], *, attempts: int = 2, on_begin: Any = None) -> GradwireError | None:
    """Transfer shares, each with one try in a row, and return the outcome."""

    def give_up(error: GradwireError, _: Share) -> float:
        raise error

    def start(share: Share) -> Stream:
        if on_begin is not None:
            on_begin(share)
        return Stream(share)

    options = SimpleNamespace(timeout_s=20.0, retry=SimpleNamespace(max_attempts=attempts))
    evaluation: Any = SimpleNamespace(options=options, share_recovery=lambda: give_up)
    cut: Any = SimpleNamespace(ask=lambda: None, cut=lambda: shares)
    any_start: Any = start
    split = SplitTry(cut, evaluation, threading.Event(), any_start)
    split.start()
    assert split.ended.wait(20)
    return split.outcome()


def test_a_share_whose_tries_are_over_is_left_to_the_next_free_thread() -> None:
    full, slow = Share(), Share()
    failed = threading.Event()
    slow.may.set()

    def begin(share: Share) -> None:
        if share is full and full.begun:
            full.may.set()
        elif share is full:
            failed.set()
        else:
            # It is under way until the other one has failed.
            assert failed.wait(20)
            while not full.waits.count(True):
                pass

    assert run([full, slow], on_begin=begin) is None
    assert (full.begun, slow.begun) == (2, 1)
    assert full.waits == [False, True, False]
    assert full.complete
    assert slow.complete


def test_the_last_thread_tries_again_if_another_share_has_ended_meanwhile() -> None:
    first, last = Share(), Share()
    first.may.set()

    def begin(share: Share) -> None:
        if share is last and not last.begun:
            while not first.complete:
                pass
        elif share is last:
            last.may.set()

    assert run([first, last], on_begin=begin) is None
    assert last.complete


def test_the_only_thread_has_nobody_to_leave_a_share_to() -> None:
    assert run([Share()]) is FULL
    assert run([Share(), Share()]) is FULL


def test_without_retries_no_share_is_left_to_another_thread() -> None:
    shares = [Share(), Share()]
    assert run(shares, attempts=1) is FULL
    assert not any(share.waits.count(True) for share in shares)
