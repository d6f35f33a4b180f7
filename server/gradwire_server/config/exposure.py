"""What a server lets out of its machine, and on whose word. All raise ValueError."""

from __future__ import annotations

from gradwire_server.config.addresses import is_host_and_port, is_loopback


def check_calls(address: str, *, clear: bool) -> None:
    """Refuse to serve in the clear beyond this machine.

    clear  whether that is wanted, or TLS keeps it from being so
    """
    if address == "unix:":
        raise ValueError("--address is unix: without a path")
    if not (clear or address.startswith("unix:") or is_loopback(address)):
        raise ValueError(
            f"--address is {address}, which is not loopback: give --tls-certificate and --tls-key, "
            "or --insecure to serve in the clear"
        )


def check_http(address: str, *, is_open: bool, asks: bool, clear: bool) -> None:
    """Refuse to tell others of the server, and to have tokens sent in the clear.

    is_open  whether everybody may read
    asks     whether readers show a token or a certificate
    clear    as of check_calls
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
