"""Names, signatures and refusals of the public API, in exact words."""

import inspect
import math
import os
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from operator import methodcaller

import numpy as np
import pytest

import gradwire
from gradwire import AsyncClient, Client, Item, RetryPolicy, errors, ops
from support.clients import COPY, SMALL, copied, halved

NAMES = """
    AsyncClient AsyncResults AttributeInfo AuthenticationError CallCancelledError Client
    DataLossError DeadlineExceededError EvaluationChangedError GradwireError InvalidRequestError
    Item LimitExceededError OperatorInfo OutOfMemoryError OverloadedError PermissionDeniedError
    Results RetryPolicy ServerError ServerInfo ServerLimits Timing UnavailableError
    UnsupportedOperatorError UseStreamError __version__ ops v1
"""
# Arguments of every method with their defaults, by position before the star.
METHODS = {
    "__init__": (
        "target=None * credentials=None connections=2 timeout_s=60.0 stream_threshold_bytes=262144 "
        f"chunk_bytes=2097152 retry={RetryPolicy()} split=False split_threshold_bytes=4194304 "
        "token=None token_file=None connect_timeout_s=None shared_memory=True checksums=None"
    ),
    "close": "",
    "empty": "shape dtype=<class 'numpy.float32'>",
    "evaluate": (
        "op array * output_shape=None out=None timeout_s=None on_progress=None on_timing=None"
    ),
    "evaluate_many": "items * ordered=True max_in_flight=64 timeout_s=None",
    "operators": "",
    "server_info": "",
    "wait_ready": "timeout_s=30.0",
}


def arguments(method):
    """Spell the arguments of a method as METHODS does."""
    spelled = []
    for each in list(inspect.signature(method).parameters.values())[1:]:
        if each.kind is each.KEYWORD_ONLY and "*" not in spelled:
            spelled.append("*")
        default = "" if each.default is each.empty else f"={each.default}"
        spelled.append(f"{each.name}{default}")
    return " ".join(spelled)


def test_the_package_exports_these_names_and_every_error():
    assert sorted(gradwire.__all__) == NAMES.split()
    for name in gradwire.__all__:
        assert hasattr(gradwire, name)
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.GradwireError):
            assert name.startswith("_") or name in gradwire.__all__
    assert gradwire.__version__ == version("gradwire")


def test_both_clients_have_these_methods_with_the_same_arguments_and_results():
    for kind in (Client, AsyncClient):
        methods = {
            name: arguments(method)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }
        assert methods == METHODS
    for name in METHODS:
        blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.iscoroutinefunction(awaited) is (name not in {"__init__", "evaluate_many"})
        # Results of many are of another type.
        if name != "evaluate_many":
            assert inspect.signature(blocking) == inspect.signature(awaited)
    assert Item._fields == ("op", "array", "output_shape", "out")


ADDRESS = 'give a server\'s address, such as "127.0.0.1:50051", or several'
HOST_PORT = "give HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:50051 or [::1]:50051"
NO_SCHEME = "give HOST:PORT without a scheme, or dns:///HOST:PORT"
IPV4 = "give addresses of IPv4 there, or a name without scheme"
ALONE = (
    "a list of replicas stands alone, as replicas+http://HOST:PORT/NAME or "
    "replicas+https://HOST:PORT/NAME"
)
LIST = "replicas+http://a:1/x"
SECONDS = "give seconds above 0, at most 31536000"
TOKENLESS = "holds no token: one is a word of printable characters, which is not shown here"
CREDENTIALS = (
    "is of type str; give what grpc.ssl_channel_credentials() returns, or None for plain text"
)
PLAIN_TEXT = (
    "a token would go to a:1 in plain text, where others can read it; give credentials for TLS "
    "(--tls-ca), or no token"
)
# Arguments of a client, the one at fault first, with the message.
MADE = [
    *(({"target": bad}, f"target is {bad!r}; {ADDRESS}") for bad in ("", "a:1,", ["a:1", 2], 5)),
    *(
        ({"target": bad}, f"target is {bad!r}; {HOST_PORT}")
        for bad in ("127.0.0.1:115587", "127.0.0.1:0", "::1", "localhost", "host:1/", "dns:///host")
    ),
    ({"target": "http://127.0.0.1:1"}, f"target is 'http://127.0.0.1:1'; {NO_SCHEME}"),
    ({"target": "ipv4:1.2.3.4:1,host:1"}, f"target is 'ipv4:1.2.3.4:1,host:1'; {IPV4}"),
    ({"target": f"{LIST}?y"}, f"target is '{LIST}?y'; {ALONE}"),
    ({"target": ["a:1", "b:0"]}, f"target is 'b:0' of ['a:1', 'b:0']; {HOST_PORT}"),
    ({"target": f"{LIST},b:2"}, f"target is '{LIST}' of '{LIST},b:2'; {ALONE}"),
    *(({"timeout_s": s}, f"timeout_s: is {s}; {SECONDS}") for s in (0, math.nan)),
    (
        {"connect_timeout_s": math.inf},
        f"connect_timeout_s: is inf; {SECONDS}, or None for the default",
    ),
    ({"credentials": "roots.pem"}, f"credentials: {CREDENTIALS}"),
    *(
        ({"token": bad}, f"token: {TOKENLESS}")
        for bad in ("", "two words", "a\nb", "\u00e9", " x", b"x")
    ),
    ({"token": "x", "token_file": "y"}, "token: is given, and token_file is too; give one of them"),
    ({"token": "x", "target": "a:1"}, f"token: {PLAIN_TEXT}"),
    ({"token_file": "y", "target": "a:1"}, f"token_file: {PLAIN_TEXT}"),
]
# Likewise of errors that have no field.
PLAIN = [
    ({"chunk_bytes": 4095}, "chunk_bytes is 4095; give an integer from 4096 to 33554432"),
    ({"retry": 3}, "retry is 3; give a RetryPolicy"),
    ({"split": "no"}, "split is 'no'; give True or False"),
    ({"checksums": "no"}, "checksums is 'no'; give True, False or None"),
]


def refused(call):
    """Return field and message of the ValueError or TypeError that a call raises."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    return getattr(caught.value, "field", None), str(caught.value)


@pytest.mark.parametrize(("given", "message"), [*MADE, *PLAIN], ids=str)
def test_a_client_cannot_be_made_of_nonsense(face, given, message):
    field = None if (given, message) in PLAIN else next(iter(given))
    assert refused(lambda: face(**{"target": "127.0.0.1:1", **given})) == (field, message)


IMAGE, PLACE = np.ones((1, 1, 4, 4), np.float32), (1, 1, 2, 2)
READ_ONLY = np.broadcast_to(IMAGE[0, 0, 0, 0], PLACE)
INTEGER = "give an integer from 0 to 2**63 - 1"
ABSENT = "is missing; the attributes of dml_resample do not determine its sizes"


def half_into(out):
    return partial(halved, array=IMAGE, out=out)


def shaped(shape, op=COPY):
    return lambda client: client.evaluate(op, SMALL, output_shape=shape)


def many(items=(), **options):
    return lambda client: client.evaluate_many(items, **options)


# Calls by field and message.
ASKED = {
    "out": {
        f"has shape (1, 1); the result has {PLACE}": half_into(np.empty((1, 1), "f4")),
        "has dtype float64; the result has float32": half_into(np.empty(PLACE)),
        "is read-only; give a writable array": half_into(READ_ONLY),
        "shares memory with the input; give another array": half_into(IMAGE[:, :, ::2, ::2]),
    },
    None: {
        "out is a bytearray; give a numpy.ndarray or numpy.memmap": half_into(bytearray(9)),
        "op is a Operator; give an operator of gradwire.ops": shaped((4, 4), ops.Operator()),
        "'int' object is not iterable": many(5),
    },
    "output": {f"output_shape: {ABSENT}": shaped(None)},
    "output.sizes": {"output_shape: is 5; give a tuple or list of integers": shaped(5)},
    "output.sizes[0]": {f"output_shape[0]: is 2.5; {INTEGER}": shaped((2.5, 3))},
    "output.sizes[1]": {
        f"output_shape[1]: is {wrong}; {INTEGER}": shaped((2, wrong)) for wrong in (True, -1)
    },
    "timeout_s": {
        f"is {s!r}; {SECONDS}, or None for the default": partial(copied, array=SMALL, timeout_s=s)
        for s in (-1, 1e10, math.nan, "5")
    }
    | {f"is {s!r}; {SECONDS}": methodcaller("wait_ready", s) for s in (0, math.nan, "1")},
    "max_in_flight": {
        f"is {most!r}; give an integer, at least 1": many(max_in_flight=most)
        for most in (0, True, "8")
    },
}


@pytest.mark.parametrize(
    ("field", "message"), [(one, each) for one in ASKED for each in ASKED[one]]
)
def test_a_call_that_cannot_be_made_is_refused(address, face, field, message):
    call, named = ASKED[field][message], field in {"out", "timeout_s", "max_in_flight"}
    with face(address) as client:
        assert refused(lambda: call(client)) == (field, f"{field}: {message}" if named else message)


ORDERED = "0 < initial_backoff_s <= max_backoff_s is needed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_attempts": 0}, "max_attempts is 0; at least 1 is needed"),
        ({"initial_backoff_s": 0.0}, f"initial_backoff_s is 0.0 and max_backoff_s 5.0; {ORDERED}"),
        ({"max_backoff_s": 0.01}, f"initial_backoff_s is 0.1 and max_backoff_s 0.01; {ORDERED}"),
        ({"max_backoff_s": math.inf}, f"initial_backoff_s is 0.1 and max_backoff_s inf; {ORDERED}"),
        ({"backoff_multiplier": math.nan}, "backoff_multiplier is nan; at least 1 is needed"),
    ],
)
def test_a_policy_out_of_range_is_refused(given, message):
    assert refused(lambda: RetryPolicy(**given)) == (None, message)


# Imports the package anew for each module.
IMPORTING = """
import os, sys, gradwire
assert "grpc" not in sys.modules
assert not [name for name in os.environ if "GRPC" in name]
for name in ("health", "ops", "tensors", "v1"):
    for loaded in [each for each in sys.modules if each.split(".")[0] == "gradwire"]:
        del sys.modules[loaded]
    import gradwire
    assert set(vars(gradwire)).isdisjoint({"health", "ops", "tensors", "v1"})
    assert getattr(gradwire, name).__name__ == f"gradwire.{name}"
"""


def test_importing_leaves_grpc_and_the_environment_alone_and_brings_modules():
    clean = {name: text for name, text in os.environ.items() if "GRPC" not in name}
    subprocess.run([sys.executable, "-c", IMPORTING], check=True, env=clean)  # noqa: S603
