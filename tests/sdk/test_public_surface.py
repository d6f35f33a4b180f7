"""What users may rely on, pinned: names, signatures, and that both clients have the same."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest

import gradwire
from gradwire import AsyncClient, Client, errors


def test_the_package_exports_these_names() -> None:
    assert sorted(gradwire.__all__) == [
        "AsyncClient",
        "CallCancelledError",
        "Client",
        "DeadlineExceededError",
        "EvaluationChangedError",
        "GradwireError",
        "InvalidRequestError",
        "LimitExceededError",
        "OutOfMemoryError",
        "OverloadedError",
        "RetryPolicy",
        "ServerError",
        "Timing",
        "UnavailableError",
        "UnsupportedOperatorError",
        "UseStreamError",
        "__version__",
        "ops",
        "v1",
    ]
    for name in gradwire.__all__:
        assert hasattr(gradwire, name)


def test_every_error_is_exported() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.GradwireError)
    }
    assert kinds <= set(gradwire.__all__)


def test_the_version_is_that_of_the_distribution() -> None:
    assert gradwire.__version__ == version("gradwire")


def test_evaluate_takes_these_arguments() -> None:
    parameters = inspect.signature(Client.evaluate).parameters
    assert list(parameters) == [
        "self",
        "op",
        "array",
        "output_shape",
        "out",
        "timeout_s",
        "on_progress",
        "on_timing",
    ]
    assert [
        name for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY
    ] == ["output_shape", "out", "timeout_s", "on_progress", "on_timing"]
    assert all(
        each.default is None
        for each in parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    )


def _public(kind: type) -> dict[str, object]:
    return {
        name: member
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__init__")
    }


def test_both_clients_have_the_same_methods() -> None:
    assert _public(Client).keys() == _public(AsyncClient).keys()
    assert sorted(_public(Client)) == [
        "__init__",
        "close",
        "evaluate",
        "operators",
        "server_info",
        "wait_ready",
    ]


@pytest.mark.parametrize("name", sorted(_public(Client)))
def test_both_clients_take_and_return_the_same(name: str) -> None:
    blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(blocking) == inspect.signature(awaited)
    assert inspect.iscoroutinefunction(awaited) is (name != "__init__")
