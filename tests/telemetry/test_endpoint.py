"""The HTTP port is there when it is asked for, with the metrics, and in nobody's way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import run_command, running_command
from support.raw_calls import PATIENCE_S, RawClient
from support.scraping import get, scrape
from support.servers import ServerThread, served, serving

HERE = "127.0.0.1:0"


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_without_an_address_nothing_is_measured() -> None:
    with served() as (server, client):
        client.check_alive()
        assert server.http_address == ""
        assert server.server.service.active.observer.cells is None
        assert not threads() & {"gradwire-http", "gradwire-history"}


def test_the_log_tells_the_port_that_was_taken(tmp_path: Path) -> None:
    with running_command("--http-port", HERE, log=tmp_path / "log") as command:
        address = command.http_address
        assert scrape(address).value("gradwire_worker_ready") == 1


def test_they_are_at_metrics() -> None:
    with serving(http_port=HERE) as server:
        address = server.http_address
        assert get(address, "/metrics?x=1")[0] == 200
        assert get(address, "/etc/passwd")[0] == 404


def test_it_speaks_openmetrics_to_who_asks() -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    with serving(http_port=HERE) as server:
        _, content_type, text = get(server.http_address, Accept=accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


def test_it_answers_before_the_server_serves_and_while_the_event_loop_is_busy() -> None:
    server = ServerThread(http_port=HERE)
    server.listen()
    address = server.http_address
    assert scrape(address).value("gradwire_worker_ready") in {0, 1}
    server.wait_until_serving()
    over = threading.Event()
    server.loop.call_soon_threadsafe(over.wait)
    try:
        assert scrape(address).value("gradwire_streams_limit") == 64
    finally:
        over.set()
        server.stop()
    with pytest.raises(ConnectionRefusedError):
        get(address)


@contextmanager
def readers(address: str, count: int, says: bytes) -> Generator[list[socket.socket]]:
    """Open connections that say so much and then wait."""
    host, port = address.split(":")
    with contextlib.ExitStack() as leaving:
        opened: list[socket.socket] = []
        for _ in range(count):
            reader = leaving.enter_context(socket.create_connection((host, int(port))))
            reader.settimeout(PATIENCE_S)
            reader.sendall(says)
            opened.append(reader)
        yield opened


@pytest.mark.parametrize("says", [b"", b"GET /metr", b"GET /metrics HTTP/1.0\r\nAccept: "])
def test_readers_that_ask_for_nothing_hold_up_no_scrape_no_call_and_no_stop(says: bytes) -> None:
    with contextlib.ExitStack() as afterwards, serving(http_port=HERE) as server:
        address = server.http_address
        silent = afterwards.enter_context(readers(address, 100, says))
        assert scrape(address).value("gradwire_worker_ready") == 1
        with RawClient(server.address) as client:
            client.check_alive()
        # Those that had to go know it.
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(100) == b""


def test_readers_that_do_not_read_hold_up_no_scrape() -> None:
    with serving(http_port=HERE) as server:
        address = server.http_address
        with readers(address, 20, b"GET /metrics HTTP/1.0\r\n\r\n"):
            assert scrape(address).value("gradwire_worker_ready") == 1


def test_scrapes_at_once_all_have_an_answer() -> None:
    with (
        serving(http_port=HERE) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        address = server.http_address
        answers = pool.map(scrape, [address] * 32)
        assert [each.value("gradwire_worker_ready") for each in answers] == [1] * 32


def test_a_name_and_an_ipv6_address_are_served() -> None:
    for host in ("localhost", "[::1]"):
        with serving(http_port=f"{host}:0") as server:
            address = server.http_address
            assert address.startswith(f"{host}:")
            assert scrape(address).value("gradwire_worker_ready") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_address_that_cannot_be_had_is_told_in_one_line(workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ("--address", HERE, "--workers", workers, "--http-port", address)
        done = run_command(*flags)
    assert done.returncode == 1
    assert f"Error: --http-port {address} cannot be had: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr
