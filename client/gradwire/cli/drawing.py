"""What of a call is drawn, and with which words."""

from __future__ import annotations

from pathlib import Path

from gradwire.cli.exits import CommandError
from gradwire.cli.tables import AxisTable, Call, Tables, forward_name

try:
    from gradwire.cli import pictures
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise CommandError('a picture is drawn with matplotlib: pip install "gradwire[plot]"') from None


def draw(call: Call, told: Tables, axis: int | None, *, path: Path) -> None:
    """Draw one axis, or all on which something happens; those that are alike once."""
    chosen = _interesting(told) if axis is None else [[axis]]
    rows = [(_caption(call, told.axes[alike[0]], alike), told.axes[alike[0]]) for alike in chosen]
    title = f"{call.operator!r}\n{call.dtype} {call.input_shape} to {told.output_shape}"
    pictures.draw(rows, title=title, path=path)


def _interesting(told: Tables) -> list[list[int]]:
    """Return the axes that are not the identity, alike ones together; else the last one."""
    groups: list[list[int]] = []
    for number, axis in enumerate(told.axes):
        if axis.is_identity:
            continue
        alike = next((each for each in groups if told.axes[each[0]].equals(axis)), None)
        if alike is None:
            groups.append([number])
        else:
            alike.append(number)
    return groups or [[len(told.axes) - 1]]


def _caption(call: Call, axis: AxisTable, alike: list[int]) -> str:
    axes = "axis" if len(alike) == 1 else "axes"
    which = " and ".join(map(str, alike))
    forward = forward_name(call.operator)
    return f"{axes} {which}: {axis.inputs} inputs and {axis.outputs} outputs of {forward}"
