"""Where a server or several workers listen: what they take, and refuse in one line."""

import re
import socket

import pytest
from click.testing import CliRunner

from gradwire_server.command import gradwire_server
from gradwire_server.config import addresses
from gradwire_server.config.settings import Settings
from support.processes import QUICK, run_command, running_command
from support.raw_calls import RawClient
from support.servers import ServerThread, commanded, served

CORE_LINE = re.compile(r"[IWE]\d{4} |WARNING: All log messages before absl")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50051", "example.org:50051"])
def test_an_address_beyond_this_machine_needs_tls_or_a_word(address):
    done = CliRunner().invoke(gradwire_server, ["--address", address])
    assert done.exit_code == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"Error: --address is {address}")
    assert "insecure" in line
    assert "--tls-certificate" in line
    Settings(address=address, insecure=True)
    Settings(address=address, tls_certificate="chain.pem", tls_key="key.pem")


def test_an_address_of_this_machine_needs_nothing_but_a_host_and_a_port():
    for address in ("127.8.9.10:0", "[::1]:0", "localhost:0", "unix:/tmp/gradwire"):
        assert Settings(address=address).address == address
    for address in ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":1", ""):
        with pytest.raises(ValueError, match=f"^--address is {address}; HOST:PORT"):
            Settings(address=address)


@pytest.mark.parametrize(
    ("workers", "flag"),
    [
        ("1", "--address=no.such.host.invalid:1"),
        ("2", "--address=TAKEN"),
        ("1", "--tls-certificate=/no/file"),
        ("1", "--http-port=TAKEN"),
        ("2", "--http-port=TAKEN"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(crew, workers, flag):
    flag = flag.replace("TAKEN", crew.address)
    more = ("--address=127.0.0.1:0", "--tls-key=/no/file" if "tls" in flag else "--insecure")
    done = run_command("--workers", workers, *QUICK, *more, flag)
    assert (done.returncode, done.stdout) == (1, "")
    # grpc's core may add the cause in lines of its own.
    (line,) = (each for each in done.stderr.splitlines() if not CORE_LINE.match(each))
    assert line.startswith("Error: ")
    assert flag.partition("=")[2] in line


def check_refused_to_workers(address):
    with pytest.raises(OSError, match=re.escape(address)), addresses.held(address):
        pass


def test_the_address_of_another_server_or_of_no_host_is_refused(crew, tmp_path):
    with served() as (server, _), served(address=f"unix:{tmp_path / 'socket'}") as (local, _):
        for address in (crew.address, server.address, local.address):
            if address is not local.address:
                check_refused_to_workers(address)
            with pytest.raises(OSError, match=address):
                ServerThread(address=address).listen()
            with RawClient(address) as client:
                client.check_alive()
    check_refused_to_workers("no.such.host.invalid:1")


def test_the_port_that_was_taken_is_told(tmp_path):
    flags = ("--workers", "2", "--address", "localhost:0")
    with (
        running_command(*flags, log=tmp_path / "log") as command,
        served(address="localhost:0") as (server, client),
        addresses.held("localhost:0") as address,
    ):
        client.check_alive()
        for each in (server.address, address, command.address):
            host, port = addresses.split(each)
            assert host == "localhost"
            assert 0 < port < 1 << 16


@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])
@pytest.mark.parametrize("listening", [False, True], ids=["bound", "listening"])
def test_a_port_of_another_program_is_refused(sharing, listening):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(sharing))
        taken.bind(("127.0.0.1", 0))
        if listening:
            taken.listen()
        check_refused_to_workers(f"127.0.0.1:{taken.getsockname()[1]}")


def port_in_time_wait():
    """Close a connection first, like a server of one worker that stops."""
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        with socket.create_connection(earlier.getsockname()) as client:
            earlier.accept()[0].close()
            assert not client.recv(1)
        return int(earlier.getsockname()[1])


def test_a_port_with_connections_in_time_wait_is_had(tmp_path):
    flags = ("--workers", "2", "--address", f"127.0.0.1:{port_in_time_wait()}")
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        assert command.address == flags[-1]
        client.check_alive()


@pytest.mark.parametrize("port", [port_in_time_wait, lambda: 0], ids=["in TIME_WAIT", "unused"])
def test_a_port_that_is_held_for_workers_that_start_is_refused(port):
    with addresses.held(f"127.0.0.1:{port()}") as address:
        check_refused_to_workers(address)
