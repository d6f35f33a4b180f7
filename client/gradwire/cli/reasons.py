"""What an element of a result is a sum of, and where operators disagree about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.cli.tables import AxisTable, Tables
from gradwire.cli.texts import as_json, middle_left_out, number, table

# Terms of a sum that are printed.
MOST_TERMS = 12


@dataclass(frozen=True, slots=True)
class Side:
    """One operator's view of one element of its result, along one axis.

    weights      by given element that the result's is a sum of, exact
    coordinates  where the forward's output reads, by given element of any operator; None where the
                 dialect tells none
    """

    weights: dict[int, float]
    coordinates: dict[int, float] | None


@dataclass(frozen=True, slots=True)
class Reason:
    """One axis of an element of the result, with a side for each operator.

    axis, element  of the result
    gradients      which operators are gradients
    """

    axis: int
    element: int
    gradients: tuple[bool, ...]
    sides: tuple[Side, ...]

    @property
    def given(self) -> list[int]:
        """Elements that enter the result's by any of the operators."""
        return sorted({given for side in self.sides for given in side.weights})

    @property
    def differ(self) -> tuple[str, ...]:
        """What differs between the operators: of "coordinates", "taps" and "weights"."""
        first, *others = self.sides
        kinds: list[str] = []
        if any(side.coordinates != first.coordinates for side in others):
            kinds.append("coordinates")
        if any(_taps(side) != _taps(first) for side in others):
            kinds.append("taps")
        elif any(side.weights != first.weights for side in others):
            kinds.append("weights")
        return tuple(kinds)


def reasons(told: Sequence[tuple[Tables, bool]], element: Sequence[int]) -> list[Reason]:
    """Return, for each axis, what an element of the result is a sum of.

    told     tables of each operator, and whether it is a gradient
    element  index in the result
    """
    found: list[Reason] = []
    for number_, place in enumerate(element):
        axes = [(tables.axes[number_], gradient) for tables, gradient in told]
        weights = [_weights(axis, place, gradient=gradient) for axis, gradient in axes]
        every = sorted({given for each in weights for given in each})
        sides = tuple(
            Side(each, _coordinates(axis, place, every, gradient=gradient))
            for each, (axis, gradient) in zip(weights, axes, strict=True)
        )
        found.append(Reason(number_, place, tuple(gradient for _, gradient in told), sides))
    return found


def words(reason: Reason, names: Sequence[str]) -> list[str]:
    """Write a reason as a table, with two columns for each operator."""
    kinds = set(reason.gradients)
    if kinds == {True}:
        heading, given = f"input {reason.element} is read by", "output"
    elif kinds == {False}:
        heading, given = f"output {reason.element} reads", "input"
    else:
        heading, given = f"element {reason.element} of the result is a sum of", "given"
    if not reason.given:
        return [f"axis {reason.axis}: {heading} nothing"]
    titles = [given]
    for name in names:
        titles += [f"{name} coordinate".strip(), "weight"]
    rows = [
        f"... {len(reason.given) - MOST_TERMS} more" if place is None else _row(reason, place)
        for place in middle_left_out(len(reason.given), MOST_TERMS)
    ]
    return [f"axis {reason.axis}: {heading}", *table(titles, rows, last_to_left=False)]


def facts(reason: Reason) -> dict[str, Any]:
    """Return a reason as JSON can hold it."""
    return {
        "axis": reason.axis,
        "element": reason.element,
        "differ": list(reason.differ),
        "sides": [
            [
                {
                    "given": given,
                    "coordinate": None
                    if side.coordinates is None
                    else as_json(side.coordinates[given]),
                    "weight": weight,
                }
                for given, weight in side.weights.items()
            ]
            for side in reason.sides
        ],
    }


def _row(reason: Reason, place: int) -> list[str]:
    given = reason.given[place]
    cells = [str(given)]
    for side in reason.sides:
        cells.append("-" if side.coordinates is None else number(side.coordinates[given]))
        cells.append(number(side.weights[given]) if given in side.weights else "-")
    return cells


def _weights(axis: AxisTable, element: int, *, gradient: bool) -> dict[int, float]:
    given, weights = axis.feeding(element) if gradient else axis.read_by(element)
    return dict(zip(given.tolist(), weights.tolist(), strict=True))


def _coordinates(
    axis: AxisTable, element: int, given: Sequence[int], *, gradient: bool
) -> dict[int, float] | None:
    if axis.coordinates is None:
        return None
    return {each: float(axis.coordinates[each if gradient else element]) for each in given}


def _taps(side: Side) -> set[int]:
    return {given for given, weight in side.weights.items() if weight}
