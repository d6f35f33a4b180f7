"""Which server a command calls, and how: --target, --tls-*, --token-file, or its own."""

from __future__ import annotations

import ssl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from gradwire import AsyncClient, Client, RetryPolicy, health
from gradwire._tokens import read_bearer
from gradwire.cli.exits import CODES, INVALID, CommandError
from gradwire.cli.local_server import local_server
from gradwire.cli.progress import retries_shown
from gradwire.errors import UnavailableError

# Seconds for which a command goes on trying to connect: whoever types it waits.
_CONNECT_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server to call.

    target  HOST:PORT, or several with commas between; None for a server that runs as long as the
            command
    tls_ca  PEM file with the authorities to trust; None for no TLS
    tls_certificate, tls_key
            PEM files that tell who calls, for a server that lets in certain clients only; None for
            any other
    token_file
            file with a token to show; None for what the environment says
    """

    target: str | None
    tls_ca: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    token_file: Path | None

    def __post_init__(self) -> None:
        if self.tls_ca is not None and self.target is None:
            raise CommandError("--tls-ca is for a --target; give that too", code=INVALID)
        if self.token_file is not None and self.target is None:
            raise CommandError("--token-file is for a --target; give that too", code=INVALID)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise CommandError(
                "--tls-certificate and --tls-key are needed together; give both", code=INVALID
            )
        if self.tls_key is not None and self.tls_ca is None:
            raise CommandError(
                "--tls-certificate and --tls-key need --tls-ca; give that too", code=INVALID
            )
        # grpc would say no more of a file that it cannot use than that it could not connect.
        self.tls_context()

    @contextmanager
    def client(self, *, backend: str = "auto", split: bool = False) -> Generator[Client]:
        """Yield a client; start a server for it, and stop that, where there is no target.

        backend  that server's; the bits do not depend on it, "numpy_cpu" starts soonest
        split    whether the servers of target share large evaluations
        """
        if self.target is not None:
            client = Client(
                self.target,
                credentials=self._credentials(),
                token_file=self._token_file(),
                connect_timeout_s=_CONNECT_S,
                split=split,
            )
            with client, retries_shown(), self._reaching():
                yield client
            return
        if split:
            raise CommandError("--split is for the servers of --target; give that", code=INVALID)
        with local_server(backend=backend) as target, Client(target) as client:
            yield client

    def async_client(self, *, connections: int, retry: RetryPolicy) -> AsyncClient:
        """Return a client of the server at target, for the running event loop."""
        return AsyncClient(
            self.target,
            credentials=self._credentials(),
            connections=connections,
            retry=retry,
            token_file=self._token_file(),
        )

    def headers(self, url: str) -> dict[str, str]:
        """Return what an HTTP request to this URL shows of the caller: the token, if any.

        Raises InvalidRequestError where that would travel to another machine in plain text.
        """
        parts = urlsplit(url)
        bearer = read_bearer(
            None, self._token_file(), target=(parts.netloc,), secure=parts.scheme == "https"
        )
        return {} if bearer is None else dict(bearer.metadata())

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what an HTTPS request is made with; None for what the system trusts.

        Raises CommandError where a file cannot be used.
        """
        if self.tls_ca is None:
            return None
        with _naming(f"--tls-ca {self.tls_ca}"):
            context = ssl.create_default_context(cafile=self.tls_ca)
        if self.tls_certificate is not None:
            both = f"--tls-certificate {self.tls_certificate} with --tls-key {self.tls_key}"
            with _naming(both):
                # grpc takes no key that needs a password; nobody is asked for one.
                context.load_cert_chain(self.tls_certificate, self.tls_key, password=lambda: b"")
        return context

    def health(self, *, timeout_s: float) -> str:
        """Return the health of the server at target, such as "SERVING"."""
        with self._reaching():
            return health.health(
                self.target or "", timeout_s=timeout_s, credentials=self._credentials()
            )

    @contextmanager
    def _reaching(self) -> Generator[None]:
        """Say what to do where nobody listens at target."""
        try:
            yield
        except UnavailableError as error:
            if not (error.unreachable and "Connection refused" in str(error)):
                raise
            raise CommandError(
                f"no server at {self.target}; start one with `gradwire-server`",
                code=CODES[UnavailableError],
            ) from error

    def _token_file(self) -> str | None:
        return None if self.token_file is None else str(self.token_file)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self.tls_ca is None:
            return None
        return grpc.ssl_channel_credentials(
            *(
                None if file is None else file.read_bytes()
                for file in (self.tls_ca, self.tls_key, self.tls_certificate)
            )
        )


@contextmanager
def _naming(files: str) -> Generator[None]:
    """Say which files OpenSSL cannot use."""
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise CommandError(f"{files} cannot be used: {reason}", code=INVALID) from error
