"""Settings, whose fields define every flag, environment variable and limit."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from gradwire_server import backends
from gradwire_server.config import container_limits
from gradwire_server.config.addresses import is_host_and_port, is_http_url, is_loopback
from gradwire_server.config.tokens import Scope, read_scopes
from gradwire_server.engine import Limits

# Upper bounds: limits of messages, of grpc and of machines; times, some thirty years.
_MOST = {
    # The highest niceness of Linux; values below 0 would need privileges.
    "compute_niceness": 19,
    "max_rank": Limits().max_rank,
    "max_message_bytes": 2**31 - 1,
    "max_connection_calls": 2**31 - 1,
    "malloc_keep_bytes": 2**31 - 1,
    # More than the cores of any machine; a port number given by mistake would exhaust it.
    "workers": 1024,
}
_MOST_S = 1e9
_MOST_INT = 2**63 - 1
_MAY_BE_ZERO = {
    "compute_niceness",
    "compute_threads",
    "drain_delay_s",
    "grace_s",
    "malloc_keep_bytes",
    "max_connection_age_s",
    "plan_cache_entries",
    "trim_after_s",
    "workers",
}


def flag(name: str) -> str:
    """Return the flag of the setting `name`."""
    return f"--{name.replace('_', '-')}"


def check_number(name: str, value: float) -> None:
    """Raise ValueError, which names the flag, if a number is out of bounds or NaN."""
    least = 0 if name in _MAY_BE_ZERO else 1 if isinstance(value, int) else 0.001
    if not value >= least:
        raise ValueError(f"{flag(name)} is {value}; at least {least} is needed")
    most = _MOST_S if isinstance(value, float) else _MOST.get(name, _MOST_INT)
    if value > most:
        raise ValueError(f"{flag(name)} is {value}; at most {most} is possible")


def check_calls(address: str, *, clear: bool) -> None:
    """Raise ValueError if calls from other machines would be unencrypted.

    clear  whether that is allowed by a setting, or TLS is used
    """
    if address == "unix:":
        raise ValueError("--address is unix: without a path")
    if not (clear or address.startswith("unix:") or is_loopback(address)):
        raise ValueError(
            f"--address is {address}, which is not loopback: give --tls-certificate and --tls-key, "
            "or --insecure to serve in the clear"
        )


def check_http(address: str, *, is_open: bool, asks: bool, clear: bool) -> None:
    """Raise ValueError if other machines could read without permission, or send tokens unencrypted.

    is_open  whether reading needs no permission
    asks     whether readers authenticate by token or certificate
    clear    as in check_calls
    """
    if not is_host_and_port(address):
        raise ValueError(f"--http-port is {address}; PORT or HOST:PORT is needed")
    if is_open or is_loopback(address):
        return
    if not asks:
        raise ValueError(
            f"--http-port is {address}, which is not loopback: give --tokens, or --tls-client-ca, "
            "or --http-open to let everybody read it"
        )
    if not clear:
        raise ValueError(
            f"--http-port is {address}, where tokens would travel in the clear: give "
            "--tls-certificate and --tls-key, or --insecure"
        )


# The largest header of a message. Parsing blocks the event loop; docs/sizing.md has figures.
MAX_HEADER_BYTES = 16 << 10

_MASK = "***"


def _setting(
    default: Any, text: str, *, choices: tuple[str, ...] = (), secret: bool = False
) -> Any:
    """Declare a setting with its help text; the unit is in its name."""
    return field(default=default, metadata={"help": text, "choices": choices, "secret": secret})


_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a server: flags --field-name and variables GRADWIRE_FIELD_NAME.

    Errors name the flag.
    """

    address: str = _setting(
        "127.0.0.1:50051", "HOST:PORT to listen on; port 0 takes a free one. unix:PATH works too."
    )
    insecure: bool = _setting(
        default=False, text="Serve without TLS on an address that is not loopback."
    )
    tls_certificate: str = _setting("", "PEM file with the server's certificates; turns TLS on.")
    tls_key: str = _setting("", "PEM file with the server's private key.", secret=True)
    tls_client_ca: str = _setting(
        "", "PEM file with the authorities whose clients are let in (mTLS)."
    )
    tokens: str = _setting(
        "", "File of `gradwire-server token`; all but health takes a token then.", secret=True
    )
    anonymous_scopes: str = _setting(
        "evaluate",
        "What callers of other machines may do without a certificate, where there is no tokens "
        "file: evaluate, inspect, both with a comma between, or nothing.",
    )
    backend: str = _setting(
        "auto",
        "What computes: auto picks the fastest of the CPU; cuda is an NVIDIA GPU.",
        choices=backends.NAMES,
    )
    compute_threads: int = _setting(
        0,
        "Threads that compute in each worker; 0 means cores / workers, at least 1. A container's "
        "limit of processor time counts.",
    )
    compute_niceness: int = _setting(
        10,
        "Niceness of the threads that compute, above that of the rest of the server, which answers "
        "in time so; 0 makes them alike. Only on Linux.",
    )
    workers: int = _setting(
        0,
        "Processes that serve; of more than one, those that die are replaced. With --backend cuda "
        "as many for each GPU, and always replaced. 0 means one, or one for each GPU.",
    )
    pin_workers: bool = _setting(default=False, text="Give each worker cores of its own.")
    warm_up: bool = _setting(
        default=True, text="Compile before serving, so that no call waits for a compiler."
    )
    compile_cache: str = _setting(
        "", "Folder in which compiled code is kept; empty means the user's cache folder."
    )
    cuda_devices: str = _setting(
        "",
        "GPUs that compute, by their numbers, such as 0,2; empty takes all that "
        "CUDA_VISIBLE_DEVICES leaves. Each has workers of its own.",
    )
    cuda_memory_bytes: int = _setting(
        backends.CUDA_MEMORY_BYTES,
        "Most bytes of its memory that are taken of each GPU; its workers divide them.",
    )
    slab_bytes: int = _setting(_LIMITS.slab_bytes, "Bytes one step of a computation works on.")
    plan_cache_entries: int = _setting(1 << 22, "Table entries of recent requests to keep.")
    max_rank: int = _setting(_LIMITS.max_rank, "Most axes of a tensor, at most 8.")
    max_elements: int = _setting(
        _LIMITS.max_elements, "Most elements of an input, output or intermediate result."
    )
    max_table_entries: int = _setting(
        _LIMITS.max_table_entries, "Most entries of all weight tables of one request."
    )
    max_float32_axis: int = _setting(
        _LIMITS.max_float32_axis, "Longest axis whose coordinates are computed in float32."
    )
    max_work: int = _setting(_LIMITS.max_work, "Most multiplications of one request.")
    max_request_memory_bytes: int = _setting(
        _LIMITS.max_request_memory_bytes, "Most bytes of memory one request may need."
    )
    max_memory_bytes: int = _setting(
        2 << 30,
        "Most bytes of memory all requests in flight may need; workers divide them. The default is "
        "less where a container's limit leaves less.",
    )
    malloc_keep_bytes: int = _setting(
        16 << 20,
        "Bytes that the C library keeps of what a worker has freed, for the next calls; 0 leaves "
        "it as it is, as for other libraries than glibc.",
    )
    max_unary_bytes: int = _setting(
        (4 << 20) - (64 << 10), "Most tensor bytes of the request and of the result of Evaluate."
    )
    max_chunk_bytes: int = _setting(2 << 20, "Most bytes of one chunk of a stream.")
    max_message_bytes: int = _setting(
        16 << 20, "Largest message read at all; larger ones end in RESOURCE_EXHAUSTED unread."
    )
    max_streams: int = _setting(64, "Most streams open at once; workers divide them.")
    max_in_flight: int = _setting(
        256, "Most requests of one EvaluateMany stream in work; the others wait unread."
    )
    max_connection_calls: int = _setting(
        100,
        "Most calls open at once on one connection; clients hold the others back "
        "(HTTP/2's MAX_CONCURRENT_STREAMS).",
    )
    max_queue: int = _setting(1024, "Most evaluations that wait for a thread; workers divide them.")
    max_queue_s: float = _setting(
        1.0,
        "Seconds after its beginning in which a burst must be done; those who come later than that "
        "allows are refused.",
    )
    max_standing_queue_s: float = _setting(
        0.005,
        "Seconds that an evaluation may have to wait for a thread where the queue has stood for "
        "max_queue_s, or a quarter of what it takes itself, if that is longer. Low keeps latencies "
        "low under overload.",
    )
    retry_after_s: float = _setting(
        0.25,
        "Seconds after which a caller may retry who came when the server was starting, or full "
        "before anything was measured.",
    )
    stall_timeout_s: float = _setting(
        60.0,
        "Seconds without progress after which a stream is ended, and without an answer after which "
        "a GPU is lost.",
    )
    drain_delay_s: float = _setting(
        0.0,
        "Seconds after SIGTERM or SIGINT in which the server is NOT_SERVING and still takes calls: "
        "as long as those who route to it need to notice.",
    )
    grace_s: float = _setting(30.0, "Seconds that running calls have to finish after that.")
    max_connection_age_s: float = _setting(
        300.0,
        "Seconds, give or take a tenth, after which a connection takes no new calls, so that "
        "clients find new servers; running calls finish. 0 means never.",
    )
    max_connection_age_grace_s: float = _setting(
        3600.0, "Seconds after that in which calls that run then have to end."
    )
    trim_after_s: float = _setting(
        1.0,
        "Seconds without a call after which freed memory is handed back to the system; 0 for "
        "never. Only with glibc.",
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "Format of log lines on stderr.", choices=("text", "json")
    )
    log_level: str = _setting(
        "info", "Least severity logged.", choices=("debug", "info", "warning", "error")
    )
    access_log: bool = _setting(
        default=False, text="Log calls that succeed at info too; otherwise at debug."
    )
    http_port: str = _setting(
        "",
        "[HOST:]PORT for health, metrics and the status page over HTTP, with TLS where the server "
        "has it; on 127.0.0.1 if there is no host. Port 0 takes a free one, which the log tells. "
        "Empty means none.",
    )
    http_open: bool = _setting(
        default=False, text="Let everybody who reaches the HTTP port read it, without a token."
    )
    http_hosts: str = _setting(
        "",
        "Names under which the HTTP port is reached, with commas between, beside localhost, its "
        "own host and IP addresses.",
    )
    otlp_endpoint: str = _setting(
        "",
        "URL of an OpenTelemetry collector for traces and metrics, such as "
        "http://127.0.0.1:4318; empty leaves it to the variables OTEL_*.",
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_number(one.name, value)
        if not self.address.startswith("unix:") and not is_host_and_port(self.address):
            raise ValueError(f"--address is {self.address}; HOST:PORT or unix:PATH is needed")
        if self.backend == "cuda" and self.address.startswith("unix:"):
            raise ValueError(
                f"--backend is cuda and --address {self.address}: a worker that loses its GPU is "
                "replaced, which a unix socket does not allow; give HOST:PORT"
            )
        if self.workers > 1 and self.address.startswith("unix:"):
            raise ValueError(
                f"--workers is {self.workers} and --address {self.address}: a unix socket takes "
                "one worker; give HOST:PORT, or --workers 1"
            )
        _ = self.scopes_of_strangers
        self._check_devices()
        self._check_exposure()
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("--tls-certificate and --tls-key are needed together")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("--tls-client-ca needs --tls-certificate and --tls-key")
        most = max(self.max_unary_bytes, self.max_chunk_bytes)
        if self.max_message_bytes < most + MAX_HEADER_BYTES:
            raise ValueError(
                f"--max-message-bytes is {self.max_message_bytes}; {MAX_HEADER_BYTES} more than "
                "--max-unary-bytes and --max-chunk-bytes is needed"
            )

    def _check_devices(self) -> None:
        """Raise ValueError for invalid GPU numbers, and for any if the backend uses no GPU."""
        if self.cuda_numbers and self.backend != "cuda":
            raise ValueError(
                f"--cuda-devices is {self.cuda_devices} and --backend {self.backend}, which takes "
                "no GPU; give --backend cuda, or leave --cuda-devices out"
            )

    def _check_exposure(self) -> None:
        clear = self.insecure or bool(self.tls_certificate)
        check_calls(self.address, clear=clear)
        if self.http_port:
            asks = bool(self.tokens or self.tls_client_ca)
            check_http(self.http_address, is_open=self.http_open, asks=asks, clear=clear)
        if self.otlp_endpoint and not is_http_url(self.otlp_endpoint):
            raise ValueError(
                f"--otlp-endpoint is {self.otlp_endpoint}; a URL such as http://127.0.0.1:4318 is "
                "needed, or nothing"
            )

    @property
    def http_address(self) -> str:
        """HOST:PORT of the HTTP port; empty if there is none."""
        return f"127.0.0.1:{self.http_port}" if self.http_port.isdecimal() else self.http_port

    @property
    def cuda_numbers(self) -> tuple[int, ...]:
        """Numbers of the GPUs to use; empty for all. Raises ValueError if they are invalid."""
        try:
            return backends.device_numbers(self.cuda_devices)
        except ValueError as error:
            raise ValueError(f"--cuda-devices is {self.cuda_devices}{error}") from None

    @property
    def scopes_of_strangers(self) -> frozenset[Scope]:
        """The scopes of anonymous_scopes. Raises ValueError for an unknown scope."""
        try:
            return read_scopes(self.anonymous_scopes)
        except ValueError as error:
            raise ValueError(f"--anonymous-scopes is {self.anonymous_scopes}: {error}") from error

    @property
    def limits(self) -> Limits:
        """Limits of one evaluation."""
        return Limits(**{one.name: getattr(self, one.name) for one in fields(Limits)})

    @property
    def threads(self) -> int:
        """Threads that compute in each worker."""
        return self.compute_threads or max(1, container_limits.processors() // max(1, self.workers))

    def described(self) -> dict[str, object]:
        """Return every setting by name, secrets masked."""
        return {
            one.name: _MASK
            if one.metadata["secret"] and getattr(self, one.name)
            else getattr(self, one.name)
            for one in fields(self)
        }
