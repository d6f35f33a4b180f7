"""What users may rely on, pinned: names, signatures, and that both clients have the same."""

import inspect
import os
import subprocess
import sys
from importlib.metadata import version

import gradwire
from gradwire import AsyncClient, Client, Item, RetryPolicy, errors

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
