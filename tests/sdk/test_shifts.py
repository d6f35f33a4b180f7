"""One who cannot go on waits for another to end; the last one has nobody to wait for."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from gradwire._core.split import ShareCoordinator
from raw_calls import wait_until


def resting(shifts: ShareCoordinator, pool: ThreadPoolExecutor) -> Future[bool]:
    """Let one rest in another thread until somebody ends."""
    asleep = shifts.resting
    future = pool.submit(shifts.rest, shifts.ended)
    wait_until(lambda: shifts.resting > asleep or future.done())
    return future


def test_the_only_one_at_work_cannot_rest() -> None:
    assert not ShareCoordinator(1).rest(0)
    shifts = ShareCoordinator(2)
    shifts.end()
    assert not shifts.rest(1)


def test_all_who_rest_go_on_once_one_has_ended() -> None:
    shifts = ShareCoordinator(4)
    with ThreadPoolExecutor() as pool:
        futures = [resting(shifts, pool) for _ in range(3)]
        assert not any(future.done() for future in futures)
        assert not shifts.rest(0)
        shifts.end()
        assert all(future.result() for future in futures)
        assert resting(shifts, pool).done() is False
        shifts.end()
    assert shifts.ended == 2


def test_nobody_rests_who_missed_an_end() -> None:
    shifts = ShareCoordinator(2)
    shifts.end()
    assert shifts.rest(0)


def test_nobody_rests_after_stop() -> None:
    shifts = ShareCoordinator(3)
    with ThreadPoolExecutor() as pool:
        future = resting(shifts, pool)
        shifts.stop()
        assert future.result()
    assert shifts.rest(0)


def test_those_who_wait_for_each_other_never_all_wait() -> None:
    for _ in range(50):
        shifts = ShareCoordinator(8)
        given_up: list[bool] = []

        def work(shifts: ShareCoordinator, given_up: list[bool]) -> None:
            since = shifts.ended
            while shifts.rest(since):
                since = shifts.ended
            given_up.append(True)
            shifts.end()

        threads = [threading.Thread(target=work, args=(shifts, given_up)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(given_up) == shifts.ended == 8
