"""Operators from the words of a command line: --op NAME --attr KEY=VALUE."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from gradwire.cli.exits import INVALID, CommandError
from gradwire.ops import OPERATORS, Operator
from gradwire.ops._attributes import rule_of, unknown_name

NUMBERS: dict[str, Callable[[str], object]] = {
    "float": float,
    "double": float,
    "int64": int,
    "int32": int,
}
FLAGS = {"true": True, "false": False}


def operator_kind(name: str) -> type[Operator]:
    """Return the class of the operator called `name`."""
    if name in OPERATORS:
        return OPERATORS[name]
    close = get_close_matches(name.lower().replace("-", "_"), OPERATORS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise CommandError(
        f"--op: {name!r} is not an operator; give one of {', '.join(OPERATORS)}{hint}", code=INVALID
    )


def operator_from(kind: type[Operator], assignments: Iterable[str]) -> Operator:
    """Make an operator from assignments such as "mode=bilinear" and "sizes=112,112".

    Raises CommandError where one cannot be read, InvalidRequestError where a value breaks its rule.
    """
    given: dict[str, object] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise CommandError(f"--attr: {assignment!r} has no '='; give NAME=VALUE", code=INVALID)
        if name in given:
            raise CommandError(f"--attr: {name} is given twice; give it once", code=INVALID)
        given[name] = _value(kind, name, text)
    return kind(**given)


def _value(kind: type[Operator], name: str, text: str) -> object:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if name not in fields:
        raise unknown_name(f"operator.{kind.name}", name, fields)
    rule = rule_of(fields[name])
    kind_of_one, array, _ = rule.type_name.partition("[]")
    if kind_of_one == "bool":
        return FLAGS.get(text.lower(), text)
    number = NUMBERS.get(kind_of_one)
    if number is None:
        return text
    try:
        return tuple(map(number, filter(str.strip, text.split(",")))) if array else number(text)
    except ValueError:
        separated = ", separated by commas" if array else ""
        raise CommandError(
            f"--attr {name}: is {text!r}; {rule.wanted}{separated}", code=INVALID
        ) from None
