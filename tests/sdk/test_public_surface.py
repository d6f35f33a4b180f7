"""What users may rely on, pinned: names, signatures, and that both clients have the same."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from importlib.metadata import version

import pytest

import gradwire
from gradwire import AsyncClient, Client, Item, errors

NAMES = """
    AsyncClient AsyncResults AttributeInfo AuthenticationError CallCancelledError Client
    DataLossError DeadlineExceededError EvaluationChangedError GradwireError InvalidRequestError
    Item LimitExceededError OperatorInfo OutOfMemoryError OverloadedError PermissionDeniedError
    Results RetryPolicy ServerError ServerInfo ServerLimits Timing UnavailableError
    UnsupportedOperatorError UseStreamError __version__ ops v1
"""
ARGUMENTS = """
    credentials connections timeout_s stream_threshold_bytes chunk_bytes retry split
    split_threshold_bytes token token_file connect_timeout_s shared_memory checksums
"""


def test_the_package_exports_these_names() -> None:
    assert sorted(gradwire.__all__) == NAMES.split()
    for name in gradwire.__all__:
        assert hasattr(gradwire, name)


def test_every_error_is_exported() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
        and issubclass(kind, errors.GradwireError)
        and not name.startswith("_")
    }
    assert kinds <= set(gradwire.__all__)


def test_the_version_is_that_of_the_distribution() -> None:
    assert gradwire.__version__ == version("gradwire")


def test_evaluate_takes_these_arguments() -> None:
    own, op, array, *others = inspect.signature(Client.evaluate).parameters.values()
    assert [own.name, op.name, array.name] == ["self", "op", "array"]
    names = ["output_shape", "out", "timeout_s", "on_progress", "on_timing"]
    assert [each.name for each in others] == names
    assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}
    assert {each.default for each in others} == {None}
    assert inspect.Parameter.KEYWORD_ONLY not in {own.kind, op.kind, array.kind}


def _public(kind: type) -> dict[str, object]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def test_both_clients_have_the_same_methods() -> None:
    assert _public(Client).keys() == _public(AsyncClient).keys()
    names = "__init__ close empty evaluate evaluate_many operators server_info wait_ready"
    assert sorted(_public(Client)) == names.split()


@pytest.mark.parametrize("name", sorted(_public(Client).keys() - {"evaluate_many"}))
def test_both_clients_take_and_return_the_same(name: str) -> None:
    blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(blocking) == inspect.signature(awaited)
    assert inspect.iscoroutinefunction(awaited) is (name != "__init__")


def test_both_clients_take_the_same_for_many_and_return_iterators_at_once() -> None:
    blocking, awaited = (
        inspect.signature(kind.evaluate_many).parameters for kind in (Client, AsyncClient)
    )
    assert {name: (each.kind, each.default) for name, each in blocking.items()} == {
        name: (each.kind, each.default) for name, each in awaited.items()
    }
    assert {name: each.default for name, each in blocking.items()} == {
        "self": inspect.Parameter.empty,
        "items": inspect.Parameter.empty,
        "ordered": True,
        "max_in_flight": 64,
        "timeout_s": None,
    }
    assert Item._fields == ("op", "array", "output_shape", "out")
    assert not inspect.iscoroutinefunction(AsyncClient.evaluate_many)


@pytest.mark.parametrize("kind", [errors.OverloadedError, errors.UnavailableError])
def test_what_a_retry_helps_against_says_when(
    kind: type[errors.OverloadedError | errors.UnavailableError],
) -> None:
    assert kind("m").retry_after_s == 0
    error = kind("m", retry_after_s=2.5, reason="R", request_id="id", metadata={"a": "b"})
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - dumped right here
    assert type(copy) is kind
    for one in (error, copy):
        told = (one.retry_after_s, one.reason, one.request_id, one.metadata)
        assert (str(one), *told) == ("m", 2.5, "R", "id", {"a": "b"})
    assert issubclass(kind, ConnectionError) == (kind is errors.UnavailableError)


def test_importing_the_package_leaves_grpc_and_the_environment_alone() -> None:
    ask = "import sys, os, gradwire; print('grpc' in sys.modules, 'GRPC_VERBOSITY' in os.environ)"
    clean = {name: text for name, text in os.environ.items() if name != "GRPC_VERBOSITY"}
    told = subprocess.check_output([sys.executable, "-c", ask], text=True, env=clean)  # noqa: S603
    assert told.split() == ["False", "False"]


@pytest.mark.parametrize("name", ["health", "ops", "tensors", "v1"])
def test_modules_are_there_without_being_imported(name: str) -> None:
    ask = f"import gradwire; print(gradwire.{name}.__name__)"
    told = subprocess.check_output([sys.executable, "-c", ask], text=True)  # noqa: S603
    assert told.strip() == f"gradwire.{name}"


def test_a_client_is_made_with_these_arguments() -> None:
    target, *others = list(inspect.signature(Client).parameters.values())
    assert (target.name, target.default) == ("target", None)
    assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}
    assert [each.name for each in others] == ARGUMENTS.split()
