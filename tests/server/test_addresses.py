"""Where a server or several workers listen: what they take, and refuse in one line."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire_server.command import gradwire_server
from gradwire_server.config import addresses
from gradwire_server.config.settings import Settings
from support.processes import QUICK, Command, run_command
from support.raw_calls import RawClient
from support.servers import ServerThread, commanded, served

CORE_LINE = re.compile(r"[IWE]\d{4} |WARNING: All log messages before absl")


def refused_in_one_line(*flags: str) -> str:
    """Run a server that cannot start and return the one line that says why."""
    done = run_command(*flags)
    assert done.returncode == 1
    assert not done.stdout
    # grpc's core may add the cause in lines of its own.
    (line,) = (each for each in done.stderr.splitlines() if not CORE_LINE.match(each))
    assert line.startswith("Error: ")
    return line


def refused(address: str, *, workers: str = "2") -> str:
    """Run a server on an address that it cannot have; return why."""
    flags = ("--workers", workers, *QUICK, "--insecure", "--address", address)
    return refused_in_one_line(*flags)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50051", "example.org:50051"])
def test_an_address_beyond_this_machine_needs_tls_or_a_word(address: str) -> None:
    done = CliRunner().invoke(gradwire_server, ["--address", address])
    assert done.exit_code == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"Error: --address is {address}")
    assert "insecure" in line
    assert "--tls-certificate" in line
    Settings(address=address, insecure=True)
    Settings(address=address, tls_certificate="chain.pem", tls_key="key.pem")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "127.8.9.10:0", "[::1]:0", "localhost:0", "unix:/tmp/gradwire"]
)
def test_an_address_of_this_machine_needs_nothing(address: str) -> None:
    assert Settings(address=address).address == address


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_port_of_another_server_is_refused_in_one_line(
    crew: Command, server: ServerThread, workers: str
) -> None:
    for address in (crew.address, server.address):
        assert address in refused(address, workers=workers)
        with RawClient(address) as client:
            client.check_alive()


@pytest.mark.parametrize(
    ("address", "workers"),
    [
        ("no.such.host.invalid:1", "1"),
        ("no.such.host.invalid:1", "2"),
        ("taken", "1"),
    ],
)
def test_an_address_that_cannot_be_had_is_refused_in_one_line(address: str, workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if address == "taken":
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused(address, workers=workers)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":1", ""])
def test_an_address_without_a_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=f"^--address is {address}; HOST:PORT"):
        Settings(address=address)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "chain.pem"
    if content is not None:
        path.write_text(content)
    flags = (f"--tls-certificate={path}", f"--tls-key={path}", "--address", "127.0.0.1:0")
    line = refused_in_one_line(*flags)
    assert content is not None or str(path) in line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_line_on_stdout_has_the_port_that_was_taken(tmp_path: Path, workers: str) -> None:
    flags = ("--workers", workers, "--address", "localhost:0")
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        host, _, port = command.address.rpartition(":")
        assert host == "localhost"
        assert 0 < int(port) < 1 << 16
        client.check_alive()


def test_a_unix_socket_that_answers_is_not_taken_over(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with served(address=address) as (_server, client):
        assert address in refused_in_one_line("--address", address)
        client.check_alive()


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


def leave_in_time_wait(listener: socket.socket) -> None:
    """Accept a connection and close it first, like a server of one worker that stops."""
    with socket.create_connection(listener.getsockname()) as client:
        listener.accept()[0].close()
        assert not client.recv(1)


def test_a_port_with_connections_in_time_wait_is_had(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        port = earlier.getsockname()[1]
        leave_in_time_wait(earlier)
    address = f"127.0.0.1:{port}"
    flags = ("--workers", "2", "--address", address)
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        assert command.address == address
        client.check_alive()


@pytest.mark.parametrize("waiting", [False, True], ids=["unused before", "in TIME_WAIT"])
def test_a_port_that_is_held_for_workers_that_start_is_refused(*, waiting: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        port = earlier.getsockname()[1]
        if waiting:
            leave_in_time_wait(earlier)
    with addresses.held(f"127.0.0.1:{port}") as address:
        assert address in refused(address)
