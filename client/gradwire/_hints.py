"""What to do about a connection that did not come about: grpc tells what happened, not why."""

from __future__ import annotations

_WANTS = (
    "the server hung up, as one does that wants TLS (credentials, --tls-ca) or the certificate of "
    "a client that it lets in (--tls-certificate, --tls-key)"
)
_STRANGE = "the server's certificate is of no authority trusted here (credentials, --tls-ca)"
_OTHER_NAMES = "the server's certificate is for other names than that in target"

# The first whose words are all there tells.
_HINTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("WRONG_VERSION_NUMBER",),
        "the server speaks plain text there; leave out credentials (--tls-ca), or give it TLS",
    ),
    (("CERTIFICATE_VERIFY_FAILED", "has expired"), "the server's certificate has expired"),
    (("CERTIFICATE_VERIFY_FAILED", "not yet valid"), "the server's certificate is not valid yet"),
    (("CERTIFICATE_VERIFY_FAILED",), _STRANGE),
    # Of an authority that has the name of one trusted here, and another key.
    (("certificate signature failure",), _STRANGE),
    (("Hostname Verification Check failed",), _OTHER_NAMES),
    # The same in the words of older releases.
    (("is not in peer certificate",), _OTHER_NAMES),
    (("failed to connect", "Socket closed"), _WANTS),
    (("failed to connect", "Connection reset"), _WANTS),
    # The same of a name with several addresses.
    (("all backends failing", "Socket closed"), _WANTS),
    (("all backends failing", "Connection reset"), _WANTS),
)

# What stays as it is however long a client waits: it goes on with the authorities that it has, and
# a server with certificates of others, or without, does not come to fit them. Not so dates, which
# pass or are renewed.
_LASTING = (
    ("WRONG_VERSION_NUMBER",),
    ("CERTIFICATE_VERIFY_FAILED", "unable to get local issuer certificate"),
    ("CERTIFICATE_VERIFY_FAILED", "self signed certificate"),
    ("certificate signature failure",),
)


_UNREACHABLE = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "Failed to connect to remote host",
    "DNS resolution failed",
    "errors resolving",
    "DNS query cancelled",
)


def is_unreachable(message: str) -> bool:
    """Whether a message of grpc's tells that no connection came about."""
    return any(words in message for words in _UNREACHABLE)


def hung_up(message: str) -> bool:
    """Whether with_hint() has begun a message with why a server may have hung up."""
    return message.startswith(_WANTS)


def is_lasting(message: str) -> bool:
    """Whether a message of grpc's tells of what this server's next answer will be too."""
    return any(all(word in message for word in words) for words in _LASTING)


def with_hint(message: str) -> str:
    """Return a message of grpc's, begun with what it means where that is known."""
    for words, hint in _HINTS:
        if all(word in message for word in words):
            return f"{hint}: {message}"
    return message
