"""Connection of a command to a given server, or its own.

The options --target, --tls-* and --token-file describe a given server. A command's own server is a
child process and is never imported: the command line needs no server package, and a fault of one
does not affect the other.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import grpc

from gradwire import AsyncClient, Client, RetryPolicy
from gradwire._core.options import read_bearer
from gradwire.cli.output import CommandError, InvalidUsage
from gradwire.errors import UnavailableError, installing

# Seconds for which a command retries connecting while its user waits.
_CONNECT_S = 1.5
# Seconds of waiting before a message says so.
_SILENT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server to call.

    target  HOST:PORT, or several, comma-separated; None for a local server that runs as long as the
            command
    tls     whether to use TLS; tls_ca implies it
    tls_ca  PEM file with the authorities to trust; None for the system's
    tls_certificate, tls_key
            PEM files that identify the client, for a server that demands client certificates; None
            for any other
    token_file
            file with a token to send; None for the environment's
    """

    target: str | None
    tls: bool
    tls_ca: str | None
    tls_certificate: str | None
    tls_key: str | None
    token_file: str | None

    def __post_init__(self) -> None:
        if self.target is None and (self.tls or self.tls_ca or self.token_file):
            raise InvalidUsage("--tls, --tls-ca and --token-file need --target; give that too")
        if (self.tls_key is None) is not (self.tls_certificate is None):
            raise InvalidUsage("--tls-key and --tls-certificate need each other; give both")
        if self.tls_key is not None and not (self.tls or self.tls_ca):
            raise InvalidUsage("--tls-key needs --tls; give that too")
        # grpc would report a file that it cannot use only as a failure to connect.
        self.tls_context()

    @contextmanager
    def client(self, *, backend: str = "auto", split: bool = False) -> Generator[Client]:
        """Yield a client; without a target, of a temporary local server.

        backend  of the local server; the bits do not depend on it, "numpy_cpu" starts soonest
        split    whether the servers of target share large evaluations
        """
        with (
            self.served(backend=backend) as (there, _),
            Client(
                there.target, **self._secrets(), connect_timeout_s=_CONNECT_S, split=split
            ) as client,
        ):
            yield client

    @contextmanager
    def served(
        self, *, backend: str = "auto", http: bool = False
    ) -> Generator[tuple[Connection, str | None]]:
        """Yield a connection with a target, and a local server's metrics URL.

        Without a target a server is started here, and ends with the block.
        """
        if self.target is not None:
            yield self, None
            return
        with local_server(backend=backend, http=http) as (target, address):
            yield replace(self, target=target), f"http://{address}/metrics"

    def async_client(self, *, connections: int, retry: RetryPolicy) -> AsyncClient:
        """Return a client of target, for the running event loop."""
        return AsyncClient(self.target, **self._secrets(), connections=connections, retry=retry)

    def headers(self, url: str) -> dict[str, str]:
        """Return the authorization header of an HTTP request, if any.

        Raises InvalidRequestError if the token would travel to another machine in plain text.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        bearer = read_bearer(None, self.token_file, target=(parts.netloc,), secure=secure)
        return {} if bearer is None else dict(bearer())

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of an HTTPS request; None for the system's authorities.

        Raises CommandError where a file cannot be used.
        """
        if self.tls_ca is None and self.tls_certificate is None:
            return None
        files = f"--tls-ca {self.tls_ca}"
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_certificate is not None:
                files = f"--tls-certificate {self.tls_certificate} with --tls-key {self.tls_key}"
                # grpc takes no key with a password, so none is asked for.
                context.load_cert_chain(self.tls_certificate, self.tls_key, password=lambda: b"")
        except OSError as error:  # ssl.SSLError is one
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            raise InvalidUsage(f"{files} cannot be used: {reason}") from error
        return context

    def wait_ready(self, client: Client, patience_s: float) -> None:
        """Wait until a client's server serves; report longer waits."""
        try:
            client.wait_ready(min(_SILENT_S, patience_s))
        except UnavailableError as error:
            waiting = f"waiting up to {patience_s:g} s for the server at {self.target}"
            click.echo(f"gradwire: {waiting}: {error}", err=True)
            client.wait_ready(patience_s)

    def _secrets(self) -> dict[str, Any]:
        return {"credentials": self.credentials(), "token_file": self.token_file}

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return TLS credentials; None for plain text."""
        if not self.tls and self.tls_ca is None:
            return None
        # OpenSSL names the file of SSL_CERT_FILE if that is set; grpc has a list of its own.
        authorities = self.tls_ca or ssl.get_default_verify_paths().cafile
        files = (authorities, self.tls_key, self.tls_certificate)
        return grpc.ssl_channel_credentials(
            *(None if file is None else Path(file).read_bytes() for file in files)
        )


SERVER = "gradwire_server"
# The server's first line on standard output, once it listens.
GREETING = b"gradwire-server listening on "
STOP_TIMEOUT_S = 5.0


def check_server_installed(reason: str) -> None:
    """Raise CommandError without the package of the server.

    reason  what needs it
    """
    if find_spec(SERVER) is None:
        raise CommandError(f"{reason}: {installing('server')}")


def last_line(text: bytes) -> str:
    """Return the last line of a failed program."""
    return text.decode(errors="replace").strip().rpartition("\n")[2] or "it says nothing"


@contextmanager
def local_server(*, backend: str = "auto", http: bool = False) -> Generator[tuple[str, str]]:
    """Yield a new server's addresses of gRPC and HTTP.

    It ends with the block, and at the latest with this process.

    backend  the server's setting, unless the environment has it
    http     whether it has an HTTP port, which takes a tenth of a second; "" for its address else
    """
    check_server_installed("no --target is given, and a server of its own needs")
    # It waits for kernels, so that `gradwire bench` measures one backend all the time; serves this
    # command alone, in plain text and without a token; and its log is read here.
    environment = {"GRADWIRE_BACKEND": backend, "GRADWIRE_WAIT_FOR_KERNELS": "true", **os.environ}
    environment |= {"GRADWIRE_LOG_FORMAT": "text", "GRADWIRE_LOG_LEVEL": "info"}
    for name in [*environment]:
        if name.startswith(("GRADWIRE_TOKENS", "GRADWIRE_TLS_")):
            del environment[name]
    flags = ["--address", "127.0.0.1:0", *(["--http-port", "127.0.0.1:0"] if http else [])]
    # A session of its own: Ctrl-C reaches this process only, which then stops the child in order.
    # The pipe at its standard input ends it should this process be killed.
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(  # noqa: S603 (our own server)
            [sys.executable, "-m", "gradwire.cli.tethered", SERVER, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        ) as child,
    ):
        try:
            assert child.stdout is not None  # noqa: S101 (Popen was asked for a pipe)
            lines = (line for line in child.stdout if line.startswith(GREETING))
            greeting = next(lines, b"")
            # Its process writes at the offset that both share.
            text = os.pread(log.fileno(), 1 << 20, 0)
            if not greeting:
                raise CommandError(f"the local server did not start: {last_line(text)}")
            target = greeting.removeprefix(GREETING).decode().strip()
            address = re.search(rb" http address=(\S+)", text)
            yield target, address[1].decode() if address else ""
        finally:
            child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
