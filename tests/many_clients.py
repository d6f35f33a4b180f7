"""evaluate_many by either client, to its last outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from numpy.typing import NDArray

from gradwire import AsyncClient, Client

Outcome = NDArray[Any] | Exception
Collect = Callable[..., list[tuple[int, Outcome]]]


def blocking(
    address: str,
    items: Iterable[Any],
    *,
    on_outcome: Callable[[int], object] = id,
    options: dict[str, Any] | None = None,
    **many: Any,
) -> list[tuple[int, Outcome]]:
    """Return place and outcome of every item, errors too, by a Client."""
    outcomes: list[tuple[int, Outcome]] = []
    with Client(address, **(options or {})) as client:
        evaluate_many: Any = client.evaluate_many
        results = evaluate_many(items, **many)
        while True:
            try:
                outcome: Any = next(results)
            except StopIteration:
                return outcomes
            except Exception as error:  # noqa: BLE001 - an outcome too
                outcome = error
            on_outcome(results.index)
            outcomes.append(placed(results.index, outcome, **many))


def awaited(
    address: str,
    items: Iterable[Any],
    *,
    on_outcome: Callable[[int], object] = id,
    options: dict[str, Any] | None = None,
    **many: Any,
) -> list[tuple[int, Outcome]]:
    """Do the same by an AsyncClient."""

    async def run() -> list[tuple[int, Outcome]]:
        outcomes: list[tuple[int, Outcome]] = []
        async with AsyncClient(address, **(options or {})) as client:
            evaluate_many: Any = client.evaluate_many
            results = evaluate_many(items, **many)
            while True:
                try:
                    outcome: Any = await anext(results)
                except StopAsyncIteration:
                    return outcomes
                except Exception as error:  # noqa: BLE001 - an outcome too
                    outcome = error
                on_outcome(results.index)
                outcomes.append(placed(results.index, outcome, **many))

    return asyncio.run(run())


def placed(index: int, outcome: Any, **many: Any) -> tuple[int, Outcome]:
    """Return place and outcome, wherever the place was told."""
    if many.get("ordered", True) or isinstance(outcome, Exception):
        return index, outcome
    assert outcome[0] == index
    return index, outcome[1]


both_clients = pytest.mark.parametrize("collect", [blocking, awaited])
either_way = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they come"])
