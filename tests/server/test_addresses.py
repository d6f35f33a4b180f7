"""Where a server listens: what it takes, and what it refuses in one line."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire_server.command import gradwire_server
from gradwire_server.config.settings import Settings
from processes import Command, run_command, running_command
from raw_calls import RawClient
from serving import serving

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


def test_insecure_is_the_word() -> None:
    with serving(address="0.0.0.0:0", insecure=True) as server:
        port = server.address.rpartition(":")[2]
        with RawClient(f"127.0.0.1:{port}") as client:
            client.check_alive()


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with serving(address=address) as server, RawClient(server.address) as client:
        assert server.address == address
        client.check_alive()


def test_a_second_server_on_one_port_is_refused_in_one_line(tmp_path: Path) -> None:
    with running_command(log=tmp_path / "log") as command:
        line = refused_in_one_line("--address", command.address)
        assert command.address in line
        with RawClient(command.address) as client:
            client.check_alive()


def test_a_port_of_another_program_is_refused_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused_in_one_line("--address", address)


@pytest.mark.parametrize("address", ["unix:/no/such/socket", "no.such.host.invalid:1"])
def test_an_address_that_is_not_there_is_refused_in_one_line(address: str) -> None:
    assert address in refused_in_one_line("--insecure", "--address", address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":1", ""])
def test_an_address_without_a_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=f"^--address is {address}; HOST:PORT"):
        Settings(address=address)


def test_a_certificate_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    flags = ("--tls-certificate", missing, "--tls-key", missing, "--address", "127.0.0.1:0")
    assert missing in refused_in_one_line(*flags)


def test_a_certificate_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    flags = ("--tls-certificate", str(wrong), "--tls-key", str(wrong), "--address", "127.0.0.1:0")
    refused_in_one_line(*flags)


def test_the_line_on_stdout_has_the_port_that_was_taken(tmp_path: Path) -> None:
    command = Command("--address", "localhost:0", log=tmp_path / "log")
    try:
        host, _, port = command.address.rpartition(":")
        assert host == "localhost"
        assert 0 < int(port) < 1 << 16
        with RawClient(command.address) as client:
            client.check_alive()
    finally:
        command.close()


def test_a_unix_socket_that_answers_is_not_taken_over(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with serving(address=address) as server, RawClient(server.address) as client:
        assert address in refused_in_one_line("--address", address)
        client.check_alive()
