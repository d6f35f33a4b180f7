"""Registry of operators, and the lowering of calls to plans.

A dialect defines its forward operator along each axis. Code common to all dialects is here: limits,
checked before any table exists, and the gradient as the adjoint of the forward's plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_server.dialects import (
    dml_resample,
    jax_resize,
    onednn_interpolate,
    onnx_resize,
    openvino_interpolate,
    tf_resize,
    torch_interpolate,
)
from gradwire_server.dialects.dialect import FLOAT32, Axes, Axis, Dialect, OperatorCall, Shape
from gradwire_server.errors import (
    InvalidFieldError,
    RequestLimitError,
    TableTooLargeError,
    UnknownOperatorError,
    counted,
)
from gradwire_server.plans import BandedMap, Plan

__all__ = ["DIALECTS", "Dialect", "Forward", "forward", "output_shape"]

DIALECTS: Final[dict[str, Dialect]] = {
    dialect.name: dialect
    for framework in (
        dml_resample,
        onednn_interpolate,
        torch_interpolate,
        onnx_resize,
        tf_resize,
        jax_resize,
        openvino_interpolate,
    )
    for dialect in framework.DIALECTS
}

# Above 2**23 a float32 cannot hold X + 0.5 for every index X.
DEFAULT_MAX_FLOAT32_AXIS: Final = 2**23
DEFAULT_MAX_TABLE_ENTRIES: Final = 2**25


def output_shape(name: str, attributes: object, input_shape: Shape) -> Shape | None:
    """Return the output shape that attributes determine.

    None for operators whose attributes never determine it.

    Raises UnknownOperatorError, and InvalidFieldError if required attributes are missing.
    """
    dialect = _dialect(name)
    _check_shape(dialect, input_shape, field="input.sizes")
    if dialect.gradient or dialect.output_shape is None:
        return None
    return dialect.output_shape(attributes, input_shape)


@dataclass(frozen=True, slots=True)
class Forward:
    """Forward of a call, within the limits.

    Its tables are not built yet.

    call  the call in forward terms
    axes  one per axis
    fill  value of result elements that read nothing along some axis
    """

    call: OperatorCall
    axes: Axes
    fill: float

    @property
    def tables(self) -> set[Axis]:
        """The axes that need a table; axes with equal tables appear once."""
        return {axis for axis in self.axes if axis is not None}

    def plan(self, table: Callable[..., BandedMap] = Axis.table) -> Plan:
        """Return the plan to apply to the call's input.

        table(axis, gradient=...) gives the table of an axis, or its adjoint.
        """
        gradient = self.call.gradient
        tables = {axis: table(axis, gradient=gradient) for axis in self.tables}
        maps = [None if axis is None else tables[axis] for axis in self.axes]
        if gradient:
            return Plan.build(maps, self.call.result)
        return Plan.build(maps, self.call.source, fill=self.fill)


def forward(
    name: str,
    attributes: object,
    input_shape: Shape,
    output_shape: Shape,
    *,
    compute: np.dtype[np.floating] = FLOAT32,
    max_float32_axis: int = DEFAULT_MAX_FLOAT32_AXIS,
    max_table_entries: int = DEFAULT_MAX_TABLE_ENTRIES,
) -> Forward:
    """Return the forward that a call applies, directly or as adjoint.

    The shapes are those of the operator as called, and of equal ranks: a gradient's input has the
    shape of the forward's output; compute is the type they are computed in. Nothing is allocated
    before the limits hold.

    Raises UnknownOperatorError, InvalidFieldError, RequestLimitError and TableTooLargeError.
    """
    dialect = _dialect(name)
    _check_shape(dialect, input_shape, field="input.sizes")
    _check_shape(dialect, output_shape, field="output.sizes")
    shapes = (input_shape, output_shape)
    source, result = reversed(shapes) if dialect.gradient else shapes
    call = OperatorCall(name, source, result, gradient=dialect.gradient, compute=compute)
    axes = dialect.axes(attributes, call)
    _check_float32_axes(axes, call, limit=max_float32_axis)
    _check_table_entries(axes, limit=max_table_entries)
    return Forward(call, axes, 0.0 if dialect.fill is None else dialect.fill(attributes))


def _dialect(name: str) -> Dialect:
    dialect = DIALECTS.get(name)
    if dialect is None:
        raise UnknownOperatorError(
            f"operator {name!r} is not known; known are {', '.join(DIALECTS)}", operator=name
        )
    return dialect


def _check_shape(dialect: Dialect, shape: Shape, *, field: str) -> None:
    if len(shape) not in dialect.ranks:
        few, many = dialect.ranks[0], dialect.ranks[-1]
        ranks = f"{few}" if few == many else f"{few} to {many}"
        raise InvalidFieldError(
            field,
            f"has {counted(len(shape), 'axis')}; {dialect.name} takes {ranks}",
            came=len(shape),
            expected=ranks,
        )
    for axis, size in enumerate(shape):
        if size < 1:
            raise InvalidFieldError(
                f"{field}[{axis}]", f"is {size}; every axis has at least 1 element", came=size
            )


def _check_float32_axes(axes: Axes, call: OperatorCall, *, limit: int) -> None:
    for number, axis in enumerate(axes):
        longest = 0 if axis is None else max(axis.inputs, axis.outputs, axis.padded)
        if axis is None or not axis.in_float32 or longest <= limit:
            continue
        field = call.result_sizes if axis.outputs > limit else call.source_sizes
        padded = " with its padding" if longest == axis.padded > axis.outputs else ""
        raise RequestLimitError(
            f"{field}[{number}] is {longest}{padded}; {call.operator} computes coordinates in "
            f"float32, which is allowed on axes of at most {limit} elements: shorten the axis, or "
            f"raise GRADWIRE_MAX_FLOAT32_AXIS (gradwire-server --max-float32-axis)",
            field=f"{field}[{number}]",
            size=longest,
            limit="max_float32_axis",
            allowed=limit,
        )


def _check_table_entries(axes: Axes, *, limit: int) -> None:
    entries = sum(axis.most_entries for axis in axes if axis is not None)
    if entries > limit:
        raise TableTooLargeError(
            f"the weight tables would need {entries} entries; {limit} are allowed: use smaller "
            f"shapes, or raise GRADWIRE_MAX_TABLE_ENTRIES (gradwire-server --max-table-entries)",
            entries=entries,
            limit="max_table_entries",
            allowed=limit,
        )
