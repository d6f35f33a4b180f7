"""Settings, whose fields define every flag, environment variable and limit."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gradwire_server import backends
from gradwire_server.config import container_limits
from gradwire_server.config.addresses import is_host_and_port, is_http_url, is_loopback
from gradwire_server.config.models import NamedModel, read_models
from gradwire_server.config.tokens import Scope, read_scopes
from gradwire_server.engine import Limits

# Upper bounds: limits of messages, of grpc and of machines; times, some thirty years.
_MOST = {
    "max_rank": Limits().max_rank,
    "max_message_bytes": 2**31 - 1,
    "max_connection_calls": 2**31 - 1,
    # More than the cores of any machine; a port number given by mistake would exhaust it.
    "workers": 1024,
    "compute_threads": 1024,
}
# Of a unix socket: sun_path of Linux has 108, the last of which is 0.
_MOST_PATH_BYTES = 107
_MOST_S = 1e9
_MOST_INT = 2**63 - 1
_MAY_BE_ZERO = {"compute_threads", "drain_delay_s", "grace_s", "max_connection_age_s", "workers"}


def flag(name: str) -> str:
    """Return the flag of the setting `name`."""
    return f"--{name.replace('_', '-')}"


# The largest header of a message. Parsing blocks the event loop; docs/sizing.md has figures.
MAX_HEADER_BYTES = 16 << 10

_MASK = "***"


def _setting(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    sensitive: bool = False,
    repeatable: bool = False,
) -> Any:
    """Declare a setting with its help text.

    The unit is in its name.

    sensitive   whether the status page masks it: the path of a file that holds secrets
    repeatable  whether its flag may be given several times; the texts are joined by blanks
    """
    return field(
        default=default,
        metadata={
            "help": text,
            "choices": choices,
            "sensitive": sensitive,
            "repeatable": repeatable,
        },
    )


_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a server: flags --field-name, variables GRADWIRE_FIELD_NAME, keys of a file.

    Errors name the flag.
    """

    address: str = _setting(
        "127.0.0.1:50051", "HOST:PORT or unix:PATH to listen on; port 0 selects a free port."
    )
    local_socket: str = _setting(
        "", "Path of a unix socket to listen on as well, for clients on this machine."
    )
    shared_memory: bool = _setting(
        default=True,
        text="Evaluate tensors in the shared memory of clients on a unix socket; Linux only.",
    )
    shared_memory_users: str = _setting(
        "",
        "Ids of users whose processes may share memory, separated by commas, beside the server's "
        "own user.",
    )
    open_inference: str = _setting(
        "auto",
        "Serve the Open Inference Protocol (KServe V2, as Triton's clients call it) on the same "
        "port; auto means on loopback addresses and unix sockets.",
        choices=("auto", "on", "off"),
    )
    open_inference_memory: str = _setting(
        "",
        "Names of POSIX shared memory that its callers on this machine may register, as a pattern "
        "such as triton-*; one worker. Empty means none.",
    )
    model: str = _setting(
        "",
        "NAME=OPERATOR:JSON, a named configuration for its callers: attributes, and datatype, dims "
        "and output_shape, in a JSON object. May be given several times.",
        repeatable=True,
    )
    insecure: bool = _setting(
        default=False, text="Serve without TLS on an address that is not loopback."
    )
    tls_certificate: str = _setting("", "PEM file with the server's certificates; enables TLS.")
    tls_key: str = _setting("", "PEM file with the server's private key.", sensitive=True)
    tls_client_ca: str = _setting(
        "", "PEM file with the authorities that client certificates must come from (mTLS)."
    )
    tokens: str = _setting(
        "",
        "Tokens file, written by `gradwire-server token`; all calls but health then need a token.",
        sensitive=True,
    )
    anonymous_scopes: str = _setting(
        "evaluate",
        "Scopes of callers on other machines without a certificate, if there is no tokens file: "
        "evaluate, inspect, or both separated by a comma; empty means none.",
    )
    backend: str = _setting(
        "auto",
        "Backend that computes; auto selects the fastest one for the CPU, cuda an NVIDIA GPU.",
        choices=backends.NAMES,
    )
    compute_threads: int = _setting(
        0,
        "Computing threads of each worker; 0 means cores / workers, at least 1. A container's CPU "
        "limit counts as its cores.",
    )
    workers: int = _setting(
        0,
        "Worker processes, on each GPU with --backend cuda; 0 means one. Workers that die are "
        "replaced if there are several, or a GPU.",
    )
    warm_up: bool = _setting(
        default=True, text="Compare the backend's bits with NumPy's before serving."
    )
    wait_for_kernels: bool = _setting(
        default=False,
        text="With --backend auto, serve only once kernels are there; otherwise NumPy computes "
        "meanwhile, with the same bits.",
    )
    compile_cache: str = _setting(
        "", "Folder for compiled kernels; empty means the user's cache folder."
    )
    cuda_devices: str = _setting(
        "",
        "Numbers of the GPUs to use, such as 0,2; empty means all visible ones "
        "(CUDA_VISIBLE_DEVICES). Each GPU has workers of its own.",
    )
    cuda_memory_bytes: int = _setting(
        backends.CUDA_MEMORY_BYTES,
        "Most bytes of device memory used on each GPU; its workers divide them.",
    )
    slab_bytes: int = _setting(
        _LIMITS.slab_bytes, "Bytes that one step of an evaluation reads and writes."
    )
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
        _LIMITS.max_request_memory_bytes, "Most bytes of memory that one request may need."
    )
    max_memory_bytes: int = _setting(
        2 << 30,
        "Most bytes of memory that all requests in flight may need; workers divide them. A "
        "container's memory limit lowers the default.",
    )
    max_unary_bytes: int = _setting(
        (4 << 20) - (64 << 10), "Most tensor bytes of the request and of the result of Evaluate."
    )
    max_chunk_bytes: int = _setting(2 << 20, "Most bytes of one chunk of a stream.")
    max_message_bytes: int = _setting(
        16 << 20, "Largest message read; larger ones are refused unread, with RESOURCE_EXHAUSTED."
    )
    max_streams: int = _setting(64, "Most streams open at once; workers divide them.")
    max_in_flight: int = _setting(
        256, "Most requests in flight of one EvaluateMany stream; the others wait unread."
    )
    max_connection_calls: int = _setting(
        100,
        "Most calls open at once on one connection; clients delay further ones (HTTP/2's "
        "MAX_CONCURRENT_STREAMS).",
    )
    max_queue: int = _setting(
        1024,
        "Most evaluations that wait for a thread; one caller leaves as many places free as it has; "
        "workers divide them.",
    )
    max_queue_s: float = _setting(
        1.0,
        "Seconds within which a burst of calls must be done; calls that would be done later are "
        "refused. Under a lasting load calls wait 5 ms, or a quarter of the time they take.",
    )
    stall_timeout_s: float = _setting(
        60.0,
        "Seconds without progress after which a stream ends, and without an answer after which a "
        "GPU counts as lost.",
    )
    drain_delay_s: float = _setting(
        0.0,
        "Seconds after SIGTERM or SIGINT in which the server reports NOT_SERVING and still accepts "
        "calls, until load balancers have noticed.",
    )
    grace_s: float = _setting(30.0, "Seconds after that in which running calls may finish.")
    max_connection_age_s: float = _setting(
        300.0,
        "Seconds after which a connection accepts no new calls, so that clients find new servers; "
        "varies by a tenth. Running calls may finish within an hour. 0 means never.",
    )
    log_format: str = _setting(
        "text", "Format of the log lines on stderr.", choices=("text", "json")
    )
    log_level: str = _setting(
        "info", "Lowest severity that is logged.", choices=("debug", "info", "warning", "error")
    )
    access_log: bool = _setting(
        default=False, text="Log successful calls at info instead of debug."
    )
    http_port: str = _setting(
        "",
        "[HOST:]PORT for health, metrics and the status page over HTTP, with the server's TLS; the "
        "host is 127.0.0.1 by default. Port 0 selects a free port, which is logged. Empty means "
        "none.",
    )
    http_open: bool = _setting(
        default=False, text="Let every client of the HTTP port read it without a token."
    )
    http_hosts: str = _setting(
        "",
        "Further host names of the HTTP port, separated by commas, beside localhost, its own host "
        "and IP addresses.",
    )
    otlp_endpoint: str = _setting(
        "",
        "URL of an OpenTelemetry collector for traces, such as "
        "http://127.0.0.1:4318; if empty, the variables OTEL_* decide.",
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        if not self.address.startswith("unix:") and not is_host_and_port(self.address):
            raise ValueError(f"--address is {self.address}; HOST:PORT or unix:PATH is needed")
        if self.backend == "cuda" and self.address.startswith("unix:"):
            raise ValueError(
                f"--backend is cuda and --address {self.address}: a worker that loses its GPU is "
                "replaced, which a unix socket does not allow; give HOST:PORT"
            )
        self._check_socket()
        _ = self.users_sharing_memory
        _ = self.scopes_of_strangers
        _ = self.named_models
        if self.open_inference_memory and self.workers > 1:
            raise ValueError(
                f"--open-inference-memory is given and --workers {self.workers}: memory is "
                "registered with one worker; give --workers 1, or leave it out"
            )
        if self.cuda_numbers and self.backend != "cuda":
            raise ValueError(
                f"--cuda-devices is {self.cuda_devices} and --backend {self.backend}, which takes "
                "no GPU; give --backend cuda, or leave --cuda-devices out"
            )
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

    def _check_socket(self) -> None:
        """Raise ValueError if there can be no unix socket at its path."""
        path, unix = Path(self.socket_path), self.address.startswith("unix:")
        came = f"address is {self.address}" if unix else f"local-socket is {self.local_socket}"
        if self.workers > 1 and self.socket_path:
            raise ValueError(
                f"--workers is {self.workers} and --{came}: a unix socket takes one worker; give "
                "HOST:PORT alone, or --workers 1"
            )
        if self.socket_path and not path.parent.is_dir():
            raise ValueError(f"--{came}: there is no folder {path.parent}; make it")
        if len(os.fsencode(path)) > _MOST_PATH_BYTES:
            raise ValueError(f"--{came}: a path of at most {_MOST_PATH_BYTES} bytes is possible")
        if path.is_file():
            raise ValueError(f"--{came}: this is a file; give a path that is free")

    def _check_numbers(self) -> None:
        """Raise ValueError if a number is out of bounds or NaN."""
        for one in fields(self):
            name, value = one.name, getattr(self, one.name)
            if isinstance(value, bool | str):
                continue
            least = 0 if name in _MAY_BE_ZERO else 1 if isinstance(value, int) else 0.001
            if not value >= least:
                raise ValueError(f"{flag(name)} is {value}; at least {least} is needed")
            most = _MOST_S if isinstance(value, float) else _MOST.get(name, _MOST_INT)
            if value > most:
                raise ValueError(f"{flag(name)} is {value}; at most {most} is possible")

    def _check_exposure(self) -> None:
        """Raise ValueError if an address is exposed without being asked to.

        Other machines could read it without permission, or send tokens in the clear.
        """
        clear = self.insecure or self.tls_certificate
        if self.address == "unix:":
            raise ValueError("--address is unix: without a path")
        if not (clear or self.is_local):
            raise ValueError(
                f"--address is {self.address}, which is not loopback: give --tls-certificate and "
                "--tls-key, or --insecure to serve in the clear"
            )
        http = self.http_address
        if http and not is_host_and_port(http):
            raise ValueError(f"--http-port is {http}; PORT or HOST:PORT is needed")
        if http and not (self.http_open or is_loopback(http)):
            if not (self.tokens or self.tls_client_ca):
                raise ValueError(
                    f"--http-port is {http}, which is not loopback: give --tokens, or "
                    "--tls-client-ca, or --http-open to let everybody read it"
                )
            if not clear:
                raise ValueError(
                    f"--http-port is {http}, where tokens would travel in the clear: give "
                    "--tls-certificate and --tls-key, or --insecure"
                )
        if self.otlp_endpoint and not is_http_url(self.otlp_endpoint):
            raise ValueError(
                f"--otlp-endpoint is {self.otlp_endpoint}; a URL such as http://127.0.0.1:4318 is "
                "needed, or nothing"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the address."""
        return self.address.startswith("unix:") or is_loopback(self.address)

    @property
    def http_address(self) -> str:
        """HOST:PORT of the HTTP port; empty if there is none."""
        return f"127.0.0.1:{self.http_port}" if self.http_port.isdecimal() else self.http_port

    @property
    def cuda_numbers(self) -> tuple[int, ...]:
        """Numbers of the GPUs to use; empty for all.

        Raises ValueError if they are invalid.
        """
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
    def socket_path(self) -> str:
        """Path of the server's unix socket; empty if there is none."""
        if self.address.startswith("unix:"):
            return self.address.removeprefix("unix:").removeprefix("//")
        return self.local_socket

    @property
    def users_sharing_memory(self) -> frozenset[int]:
        """The ids of shared_memory_users, and this process's own.

        Raises ValueError for other texts than numbers.
        """
        ids = [one.strip() for one in self.shared_memory_users.split(",") if one.strip()]
        if not all(one.isascii() and one.isdecimal() for one in ids):
            raise ValueError(
                f"--shared-memory-users is {self.shared_memory_users}; numbers separated by "
                "commas are needed"
            )
        return frozenset((os.geteuid(), *map(int, ids)))

    @property
    def serves_open_inference(self) -> bool:
        """Whether the Open Inference Protocol is served."""
        return self.open_inference == "on" or (self.open_inference == "auto" and self.is_local)

    @property
    def named_models(self) -> dict[str, NamedModel]:
        """Operators and configurations of `model`, by name; or ValueError."""
        try:
            return read_models(self.model)
        except ValueError as error:
            raise ValueError(f"--model is {error}") from error

    @property
    def limits(self) -> Limits:
        """Limits of one evaluation."""
        return Limits(**{one.name: getattr(self, one.name) for one in fields(Limits)})

    @property
    def threads(self) -> int:
        """Threads that compute in each worker."""
        return self.compute_threads or max(1, container_limits.processors() // max(1, self.workers))

    def choose_backend(self) -> tuple[backends.Backend, str]:
        """Return the backend that computes, and why; raises as backends.choose() does."""
        return backends.choose(
            self.backend,
            threads=self.threads,
            cache_dir=self.compile_cache,
            cuda_memory_bytes=self.cuda_memory_bytes,
        )

    def described(self, *, paths: bool) -> dict[str, object]:
        """Return every setting by name; the password in a URL is masked.

        paths  whether to show the paths of the private key and the tokens, rather than mask them
        """
        told: dict[str, object] = {
            one.name: _MASK
            if one.metadata["sensitive"] and getattr(self, one.name) and not paths
            else getattr(self, one.name)
            for one in fields(self)
        }
        user, at, _ = urlsplit(self.otlp_endpoint).netloc.rpartition("@")
        if at:
            told["otlp_endpoint"] = self.otlp_endpoint.replace(f"{user}@", f"{_MASK}@", 1)
        return told


_TYPES = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "text in quotes",
    "list": "an array",
    "dict": "a table",
}


def read_config(path: str) -> dict[str, Any]:
    """Return the settings in a TOML file by name.

    Raises ValueError, which names the key.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config is {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--config is {path}, which is not valid TOML: {error}") from error
    # Of their defaults, since annotations are texts here.
    types = {one.name: type(one.default).__name__ for one in fields(Settings)}
    for key, value in values.items():
        if key not in types:
            near = ["address"] if key == "port" else get_close_matches(key, types, 1)
            raise ValueError(
                f"--config is {path}: {key} is not a setting"
                + (f"; did you mean {near[0]}?" if near else "")
            )
        came, needed = type(value).__name__, types[key]
        if came != needed and (came, needed) != ("int", "float"):
            kind = _TYPES.get(came, "a time")
            raise ValueError(
                f"--config is {path}: {key} is {value!r}, {kind}; {_TYPES[needed]} is needed"
            )
    return values
