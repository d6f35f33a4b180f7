"""Texts of what the clients refuse: calls and values, the field at fault and the exact message."""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from gradwire import RetryPolicy, ops
from gradwire._wire.requests import check_operator
from gradwire.health import health
from support.clients import COPY, SMALL, copied, halved

IMAGE, PLACE = np.ones((1, 1, 4, 4), np.float32), (1, 1, 2, 2)

HOST_PORT = "give HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:50051 or [::1]:50051"
NO_SCHEME = "give HOST:PORT without a scheme, or dns:///HOST:PORT"
ALONE = (
    "a list of replicas stands alone, as replicas+http://HOST:PORT/NAME or "
    "replicas+https://HOST:PORT/NAME"
)
LIST = "replicas+http://a:1"
SECONDS = "give seconds above 0, at most 31536000"
TOKENLESS = "token: holds no token: one is a word of printable characters, which is not shown here"
CREDENTIALS = "give what grpc.ssl_channel_credentials() returns, or None for plain text"
TWICE = "is given, and token_file is too; give one of them"
PLAIN_TEXT = (
    "a token would go to a:1 in plain text, where others can read it; give credentials for TLS "
    "(--tls-ca), or no token"
)

# Targets, by what would do.
TARGETS = {
    'give a server\'s address, such as "127.0.0.1:50051", or several': (
        *("", ",", "a:1,", [], ["a:1", ""], ["a:1", 2], 5, b"a:1"),
    ),
    HOST_PORT: (
        *("127.0.0.1:115587", "127.0.0.1:0", "dns:///host:70000", "::1", "[::1]", "[host]:1"),
        *("127.0.0.1", "localhost", "host:", "host:1/", "host:port", "host:-1", "host: 1", ":1"),
        *("dns:///host", "ipv4:1.2.3.4", "\0:1"),
    ),
    NO_SCHEME: ("http://127.0.0.1:1", "https://host:1/", "grpc://host:1"),
    "give addresses of IPv4 there, or a name without scheme": ("ipv4:1.2.3.4:1,host:1",),
    "give addresses of IPv6 there, or a name without scheme": ("ipv6:1.2.3.4:1",),
    "give unix:NAME": ("unix:",),
    ALONE: (
        *("replicas+http://host:0/name", "replicas+http://a/x", "replicas+http://a:b/x"),
        *("replicas+http://:1/x", f"{LIST}/x?y", "replicas+http://user@a:1/x"),
        "replicas+ftp://a:1/x",
    ),
}
# Arguments of a client, with field and message.
MADE = [
    *(
        ({"target": target}, "target", f"target is {target!r}; {advice}")
        for advice, targets in TARGETS.items()
        for target in targets
    ),
    *(
        ({"target": target}, "target", f"target is {wrong!r} of {target!r}; {advice}")
        for target, wrong, advice in (
            *(("a:1,b", "b", HOST_PORT), (["a:1", "b:0"], "b:0", HOST_PORT)),
            *((target, f"{LIST}/x", ALONE) for target in (f"{LIST}/x,b:2", [f"{LIST}/x", "b:2"])),
        )
    ),
    *(({"timeout_s": s}, "timeout_s", f"timeout_s: is {s}; {SECONDS}") for s in (0, math.nan)),
    *(
        (
            {"connect_timeout_s": s},
            "connect_timeout_s",
            f"connect_timeout_s: is {s!r}; {SECONDS}, or None for the default",
        )
        for s in (0, -1, math.nan, math.inf, "1")
    ),
    *(
        ({name: given}, None, f"{name} is {given}; give an integer from {least} to {most}")
        for name, given, least, most in (
            ("stream_threshold_bytes", -1, 0, sys.maxsize),
            *(("chunk_bytes", given, 4096, 33554432) for given in (0, 4095, 1 << 30)),
        )
    ),
    *(
        ({name: given}, None, f"{name} is {given!r}; give {wanted}")
        for name, given, wanted in (
            *(("retry", given, "a RetryPolicy") for given in (3, None)),
            *((name, "no", "True or False") for name in ("split", "shared_memory")),
            ("checksums", "no", "True, False or None"),
        )
    ),
    *(
        ({"credentials": wrong}, "credentials", f"credentials: is of type {name}; {CREDENTIALS}")
        for wrong, name in ((True, "bool"), ("roots.pem", "str"), (b"-----BEGIN", "bytes"))
    ),
    *(({"token": bad}, "token", TOKENLESS) for bad in ("", "two words", "a\nb", "\u00e9", " x")),
    ({"token": "x", "token_file": "y"}, "token", f"token: {TWICE}"),
    ({"token": "x", "target": "a:1"}, "token", f"token: {PLAIN_TEXT}"),
    ({"token_file": "y", "target": "a:1"}, "token_file", f"token_file: {PLAIN_TEXT}"),
]


def refused(call):
    """Return field and message of the ValueError or TypeError that a call raises."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    return getattr(caught.value, "field", None), str(caught.value)


@pytest.mark.parametrize(("arguments", "field", "message"), MADE, ids=str)
def test_a_client_cannot_be_made_of_nonsense(face, arguments, field, message):
    made = {"target": "127.0.0.1:1", **arguments}
    assert refused(lambda: face(**made)) == (field, message)


def test_the_base_of_all_operators_is_not_one():
    told = "op is a Operator; give an operator of gradwire.ops"
    assert refused(lambda: check_operator(ops.Operator())) == (None, told)


def test_a_bad_target_in_the_environment_is_named(face, monkeypatch):
    for target, advice in (("127.0.0.1", HOST_PORT), ("a:1,", next(iter(TARGETS)))):
        monkeypatch.setenv("GRADWIRE_TARGET", target)
        assert refused(face) == ("target", f"GRADWIRE_TARGET is {target!r}; {advice}")
    wrong = "roots.pem"
    asked = refused(lambda: health("127.0.0.1:1", credentials=wrong))
    assert asked == ("credentials", f"credentials: is of type str; {CREDENTIALS}")


INTEGER = "give an integer from 0 to 2**63 - 1"
ABSENT = "output_shape: is missing; the attributes of dml_resample do not determine its sizes"
Asked = Callable[[Any], object]


def half_into(out):
    return partial(halved, array=IMAGE, out=out)


def shaped(shape, op=COPY):
    return lambda client: client.evaluate(op, SMALL, output_shape=shape)


def many(items=(), **options):
    return lambda client: client.evaluate_many(items, **options)


# Calls by message and field.
ASKED = {
    "out": {
        f"out: has shape {(*PLACE, 1)}; the result has {PLACE}": half_into(
            np.empty((*PLACE, 1), "f4")
        ),
        "out: has dtype float64; the result has float32": half_into(np.empty(PLACE)),
        "out: is read-only; give a writable array": half_into(
            np.broadcast_to(IMAGE[0, 0, 0, 0], PLACE)
        ),
        "out: shares memory with the input; give another array": half_into(IMAGE[:, :, ::2, ::2]),
    },
    None: {
        "out is a bytearray; give a numpy.ndarray or numpy.memmap": half_into(bytearray(100)),
        "op is a Operator; give an operator of gradwire.ops": shaped((4, 4), ops.to_message(COPY)),
        "'int' object is not iterable": many(5),
    },
    "output": {ABSENT: shaped(None)},
    "output.sizes": {
        "output_shape: is 5; give a tuple or list of integers": shaped(5),
        f"output_shape: is {COPY!r}; give a tuple or list of integers": shaped(COPY),
    },
    "output.sizes[0]": {
        f"output_shape[0]: is 'a'; {INTEGER}": shaped("ab"),
        f"output_shape[0]: is 2.5; {INTEGER}": shaped((2.5, 3)),
    },
    "output.sizes[1]": {
        f"output_shape[1]: is True; {INTEGER}": shaped((2, True)),
        f"output_shape[1]: is -1; {INTEGER}": shaped((2, -1)),
    },
    "timeout_s": {
        f"timeout_s: is {s!r}; {SECONDS}, or None for the default": (
            partial(copied, array=SMALL, timeout_s=s)
        )
        for s in (0, -1, 1e10, math.nan, math.inf, "5")
    },
    "max_in_flight": {
        f"max_in_flight: is {most!r}; give an integer, at least 1": many(max_in_flight=most)
        for most in (0, -1, True, 2.0, "8")
    },
}


@pytest.mark.parametrize(
    ("message", "field"), [(message, field) for field in ASKED for message in ASKED[field]]
)
def test_a_call_that_cannot_be_made_is_refused(address, face, message, field):
    call = ASKED[field][message]
    with face(address) as client:
        assert refused(lambda: call(client)) == (field, message)


ORDERED = "0 < initial_backoff_s <= max_backoff_s is needed"
POLICIES = {
    "max_attempts is 0; at least 1 is needed": {"max_attempts": 0},
    **{
        f"initial_backoff_s is {initial_s} and max_backoff_s {most_s}; {ORDERED}": {
            "initial_backoff_s": initial_s,
            "max_backoff_s": most_s,
        }
        for initial_s, most_s in ((0.0, 5.0), (2.0, 1.0), (0.1, math.inf))
    },
    **{
        f"backoff_multiplier is {by}; at least 1 is needed": {"backoff_multiplier": by}
        for by in (0.5, math.nan)
    },
}


@pytest.mark.parametrize("message", POLICIES)
def test_a_policy_out_of_range_is_refused(message):
    assert refused(lambda: RetryPolicy(**POLICIES[message])) == (None, message)
