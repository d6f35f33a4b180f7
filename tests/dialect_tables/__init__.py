"""Every dialect's table: a module here is found by being here, and has one called TABLE."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from support.oracles.dialect_table import Example, Table

TABLES: dict[str, Table] = {
    each.name: import_module(f"{__name__}.{each.name}").TABLE
    for each in pkgutil.iter_modules(__path__)
}
EXAMPLES: dict[str, Example] = {
    f"{name} {number} {example.operator!r}": example
    for name, table in TABLES.items()
    for number, example in enumerate(table.examples)
}
