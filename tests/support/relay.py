"""What fails or differs between client and server: cut, held or lost bytes, other releases."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.message import Message

from gradwire import v1


class Relay:
    """Relays every connection to a server, at an address of its own.

    cuts      connection i is cut once it has carried cuts[i] bytes from the server; later ones, and
              those with None, last; cuts_up are likewise of bytes from the client
    on_cut    called before each cut
    delay_s   seconds that 64 KiB from clients wait, and fewer bytes in proportion
    alter     makes of what the server sends at once what clients get in its place; alter_up
              likewise of what a client sends

    It counts the connections so far, those cut, and carried_bytes that clients have sent.
    """

    def __init__(
        self,
        server: str,
        *,
        cuts: Iterable[int | None] = (),
        cuts_up: Iterable[int | None] = (),
        on_cut: Callable[[], object] = bool,
    ) -> None:
        self._server = _host_and_port(server)
        self._cuts, self._cuts_up = iter(cuts), iter(cuts_up)
        self.on_cut = on_cut
        self._swallows = self._spares = False
        self.connections = self.cut = self.carried_bytes = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._allowance = 0
        self.delay_s = 0.0
        self.alter: Callable[[bytes], bytes] = bytes
        self.alter_up: Callable[[bytes], bytes] = bytes
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *, after: int = 0) -> None:
        """Hold back what clients send after so many bytes more; what the server sends passes."""
        self._allowance = after
        if not after:
            self._flowing.clear()

    def let_go(self) -> None:
        self._flowing.set()

    def spare(self) -> None:
        """Cut no connection any more."""
        self._spares = True

    def swallow(self) -> None:
        """Lose all that is sent either way from now on, on connections that are there and stay."""
        self._swallows = True

    def lead_to(self, server: str) -> None:
        """Cut every connection and lead new ones to another server."""
        self._server = _host_and_port(server)
        _close(*self._sockets)

    def close(self) -> None:
        """Cut every connection and accept no more."""
        self._flowing.set()
        _close(self._listener, *self._sockets)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._start(client)

    def _start(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        self._sockets += [client, server]
        cuts = next(self._cuts_up, None), next(self._cuts, None)
        for pump, cut in zip((self._pump_up, self._pump_down), cuts, strict=True):
            threading.Thread(target=pump, args=(client, server, cut), daemon=True).start()

    def _pump_up(self, client: socket.socket, server: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                self.carried_bytes += len(data)
                self._flowing.wait()
                time.sleep(self.delay_s * len(data) / (1 << 16))
                left = self._pass(self.alter_up(data), server, left)
                if self._allowance:
                    self._allowance = max(0, self._allowance - len(data))
                    if not self._allowance:
                        self._flowing.clear()
                if left == 0:
                    _close(client)
                    break
        _close(server)

    def _pump_down(self, client: socket.socket, server: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while left != 0 and (data := self.alter(server.recv(1 << 16))):
                left = self._pass(data, client, left)
        _close(client, server)

    def _pass(self, data: bytes, to: socket.socket, left: int | None) -> int | None:
        """Pass bytes on, the last ones before a cut alone; return how many are left, 0 at a cut."""
        if left is not None and left <= len(data) and not self._spares:
            to.sendall(data[:left])
            self.cut += 1
            self.on_cut()
            return 0
        if not self._swallows:
            to.sendall(data)
        return None if left is None else left - len(data)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def relaying(server: str, **options: Any) -> contextlib.closing[Relay]:
    return contextlib.closing(Relay(server, **options))


Change = Callable[[str, bytes], bytes]
# Field 110, which no message has: a text.
_UNKNOWN = b"\xf2\x06\x05newer"


def newer(method: str, answer: bytes) -> bytes:
    """Add a field that this release does not know to every message of an answer."""
    message: Message = getattr(v1, f"{method}Response").FromString(answer)
    _grow(message)
    return message.SerializeToString()


def older(method: str, answer: bytes) -> bytes:
    """Tell nothing but the version of the server."""
    if method == "GetServerInfo":
        told = v1.GetServerInfoResponse.FromString(answer)
        return v1.GetServerInfoResponse(version=told.version).SerializeToString()
    return answer


def _grow(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            _grow(each)
    message.MergeFromString(_UNKNOWN)


@contextmanager
def skewed(address: str, change: Change, *, trailers: bool = True) -> Generator[str]:
    """Run a server of another release in front of one; yield its address.

    It asks the server and changes its answers; trailing metadata it sends only if told to.
    """
    channel: Any = grpc.insecure_channel(address)

    def service(details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call = channel.stream_stream(details.method)(requests)
            with contextlib.suppress(grpc.RpcError):
                for each in call:
                    yield change(details.method.rpartition("/")[2], each)
            if trailers:
                context.set_trailing_metadata(tuple(call.trailing_metadata() or ()))
            if call.code() is not grpc.StatusCode.OK:
                context.abort(call.code(), call.details() or "")

        return grpc.stream_stream_rpc_method_handler(answer)

    handler: Any = SimpleNamespace(service=service)
    server = grpc.server(ThreadPoolExecutor(8), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def drawn_cuts(
    seed: int, *, early: float = 0.25, late: tuple[int, int] = (1 << 16, 4 << 20)
) -> tuple[Iterator[int | None], Iterator[int | None]]:
    """Return the bytes after which each connection is cut: from the server, and from the client.

    Each is cut in one of the two; on a scale of logarithms positions are uniform.

    early  part of them that is cut within the greeting and the first calls, 64 KiB
    late   first and last byte after which the others are
    """
    chance = random.Random(seed)  # noqa: S311 - nothing secret

    def pairs() -> Iterator[tuple[int | None, int | None]]:
        while True:
            ends = (1, 1 << 16) if chance.random() < early else late
            place = int(math.exp(chance.uniform(*map(math.log, ends))))
            yield (place, None) if chance.random() < 0.5 else (None, place)

    down, up = itertools.tee(pairs())
    return (pair[0] for pair in down), (pair[1] for pair in up)
