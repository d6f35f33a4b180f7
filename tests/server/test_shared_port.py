"""Several workers hold one port, which nothing else may have."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire_server.config import addresses
from processes import Command, run_command, running_command
from raw_calls import RawClient

FLAGS = ("--workers", "2", "--backend", "numpy_cpu")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    log = tmp_path_factory.mktemp("workers") / "log"
    with running_command(*FLAGS, log=log) as command:
        yield command


def refused(address: str) -> str:
    """Run a server with workers on an address that it cannot have; return why."""
    done = run_command(*FLAGS, "--insecure", "--address", address)
    assert done.returncode == 1
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


def test_a_port_of_other_workers_is_refused(command: Command) -> None:
    assert command.address in refused(command.address)


@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])
@pytest.mark.parametrize("listening", [False, True], ids=["bound", "listening"])
def test_a_port_of_another_program_is_refused(*, sharing: bool, listening: bool) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(sharing))
        taken.bind(("127.0.0.1", 0))
        if listening:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused(address)


def test_a_port_with_connections_in_time_wait_is_had(tmp_path: Path) -> None:
    # The side that closes first keeps its end in TIME_WAIT, like a server of one worker that stops.
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        port = earlier.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            earlier.accept()[0].close()
            assert not client.recv(1)
    address = f"127.0.0.1:{port}"
    with running_command(*FLAGS, "--address", address, log=tmp_path / "log") as command:
        assert command.address == address
        with RawClient(address) as client:
            client.check_alive()


@pytest.mark.parametrize("waiting", [False, True], ids=["unused before", "in TIME_WAIT"])
def test_a_port_that_is_held_for_workers_that_start_is_refused(*, waiting: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        port = earlier.getsockname()[1]
        if waiting:
            with socket.create_connection(("127.0.0.1", port)) as client:
                earlier.accept()[0].close()
                assert not client.recv(1)
    with addresses.held(f"127.0.0.1:{port}") as address:
        assert address in refused(address)


def test_a_single_server_is_refused_the_port_of_workers(command: Command) -> None:
    done = run_command("--address", command.address)
    assert done.returncode == 1
    assert command.address in done.stderr


def test_an_address_that_is_not_there_is_refused() -> None:
    assert "no.such.host.invalid:1" in refused("no.such.host.invalid:1")


def test_a_name_with_several_addresses_is_served_by_workers(tmp_path: Path) -> None:
    with running_command(*FLAGS, "--address", "localhost:0", log=tmp_path / "log") as command:
        assert command.address.startswith("localhost:")
        with RawClient(command.address) as client:
            client.check_alive()
