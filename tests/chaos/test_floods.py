"""Whatever a caller floods a server with, its memory is bounded and the others are served."""

from __future__ import annotations

import re
import struct
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from chaos.attacks import ATTACKS, MIB, unfinished
from support.load import repeated
from support.processes import EAGER, Command, memory_kib, running_command
from support.raw_calls import (
    PUBLISHED_RESULT,
    RawClient,
    identity_request,
    published_request,
    wait_until,
)
from support.raw_frames import (
    END_HEADERS,
    HEADERS,
    WINDOW,
    RawConnection,
    call_headers,
    data_frames,
    frame,
    message,
    settings,
)

STALL_S = 1.5
BUDGET_MIB = 256
# A share of the budget for what the flood is about, and what grpc and Python need to see it off.
MOST_MIB = 160
# While they last so many calls of others are answered.
OTHERS = 10


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    flags = ("--log-level", "warning", "--stall-timeout-s", str(STALL_S))
    given = (*flags, "--max-memory-bytes", str(BUDGET_MIB << 20))
    log = tmp_path_factory.mktemp("floods") / "log"
    with running_command(*given, log=log, env=EAGER) as command:
        yield command
        assert "Traceback" not in command.log


def caller(address: str) -> Generator[object]:
    """Yield how each of many calls over one connection failed; None where it brought its bits."""
    with RawClient(address) as client:
        while True:
            answer = client.evaluate(published_request())
            yield None if answer.data == PUBLISHED_RESULT else answer


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_flood_takes_bounded_memory_and_others_are_served(command: Command, name: str) -> None:
    others = caller(command.address)
    with closing(others), repeated(partial(next, others), threads=1) as load:
        load.wait_for_more(OTHERS)
        files = open_files(command.pid)
        resident = memory_kib(command.pid, "VmRSS")
        Path(f"/proc/{command.pid}/clear_refs").write_text("5")  # forgets the highest VmRSS
        least = load.calls + OTHERS
        ATTACKS[name](command.address)
        while load.calls < least:
            time.sleep(0.1)  # they share an interpreter with the attack
            ATTACKS[name](command.address)
        assert memory_kib(command.pid, "VmHWM") < resident + MOST_MIB * 1024
        # The server finds some reset connections by its keepalive pings only, 20 s later.
        wait_until(lambda: open_files(command.pid) <= files, patience_s=45.0)
    with RawClient(command.address) as client:
        client.check_alive()


def ends(received: bytes) -> list[int]:
    """Return the status of every call that has ended, of frames without header compression."""
    return [int(found) for found in re.findall(rb"grpc-status[\x01\x02](1?\d)", received)]


@pytest.mark.parametrize("method", ["Evaluate", "ListOperators", "GetServerInfo"])
def test_a_request_that_does_not_come_whole_is_ended(command: Command, method: str) -> None:
    with RawConnection(command.address) as connection:
        connection.send(*unfinished(3, method=f"/gradwire.v1.GradientService/{method}"))
        received = connection.drain(STALL_S + 1.0)
    # DEADLINE_EXCEEDED
    assert ends(received) == [4] * 3
    assert received.count(b"the request was not there after 1.5 s") == 3


def test_requests_that_are_slow_to_come_hold_a_share_of_the_memory(command: Command) -> None:
    with RawConnection(command.address) as slow:
        slow.send(*unfinished(40))
        received = slow.drain(STALL_S + 1.0)
    # 16 MiB may come with each, and a quarter of 256 MiB is one caller's: for the others
    # RESOURCE_EXHAUSTED, and later DEADLINE_EXCEEDED.
    assert ends(received) == [8] * 36 + [4] * 4
    assert received.count(b"requests of this caller that have not come whole reserve") == 36
    assert b"retry after 0.0 s" not in received


def test_requests_that_do_not_come_leave_room_for_those_that_do(command: Command) -> None:
    addresses = [f"127.0.1.{number}" for number in range(1, 7)]
    with (
        ExitStack() as stack,
        RawClient(command.address) as client,
    ):
        for address in addresses:
            slow = stack.enter_context(RawConnection(command.address, source=address))
            slow.send(*unfinished(8))
        time.sleep(STALL_S / 2 + 0.5)
        assert client.evaluate(published_request()).refusal is None


@pytest.mark.slow
def test_replies_that_are_not_read_hold_a_share_of_the_memory(command: Command) -> None:
    request = identity_request(MIB // 4, data=bytes(4))
    request.input.strides[:] = [0]
    body = message(request.SerializeToString())
    with RawConnection(command.address, window=0) as connection:
        for stream in range(1, 180, 2):
            head = frame(HEADERS, END_HEADERS, stream, call_headers())
            connection.send(head, *data_frames(stream, body))
            # One after the other: at once they would be refused for what they need meanwhile.
            assert connection.socket.recv(1 << 16)
        connection.drain(1.0)
        # Now they are read.
        connection.send(settings(s4=2 * MIB), frame(WINDOW, 0, 0, struct.pack(">I", 1 << 30)))
        received = connection.drain(1.0)
    statuses = Counter(ends(received))
    # Of 90 MiB a quarter of the budget, 64 MiB, is one caller's: OK and RESOURCE_EXHAUSTED.
    assert statuses.keys() == {0, 8}
    assert statuses.total() == 90
    assert statuses[0] * MIB <= BUDGET_MIB * MIB // 4
    assert 0 < received.count(b"replies that this caller has not read hold") <= statuses[8]
