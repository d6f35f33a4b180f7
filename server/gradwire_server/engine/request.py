"""The limits of one evaluation, all in exact integers."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire_server.dialects import DEFAULT_MAX_FLOAT32_AXIS, DEFAULT_MAX_TABLE_ENTRIES
from gradwire_server.engine.layout import TensorSpec
from gradwire_server.errors import RequestLimitError
from gradwire_server.plans import Plan
from gradwire_server.text import counted


@dataclass(frozen=True, slots=True)
class Limits:
    """What one evaluation may take; the settings of the same names hold the defaults.

    max_rank                  axes of a tensor
    max_elements              logical elements of input, output and any intermediate result
    max_table_entries         entries of all weight tables
    max_float32_axis          elements of an axis whose coordinates are computed in float32
    max_work                  multiplications
    max_request_memory_bytes  bytes of memory at once
    slab_bytes                bytes one step should work on
    """

    max_rank: int = 8
    max_elements: int = 1 << 36
    max_table_entries: int = DEFAULT_MAX_TABLE_ENTRIES
    max_float32_axis: int = DEFAULT_MAX_FLOAT32_AXIS
    max_work: int = 1 << 40
    max_request_memory_bytes: int = 1 << 30
    slab_bytes: int = 2 << 20

    def check_tensor(self, name: str, tensor: TensorSpec) -> None:
        """Refuse a tensor with too many axes or elements; name is "input" or "output"."""
        if len(tensor.sizes) > self.max_rank:
            raise exceeded(
                f"{name} has {counted(len(tensor.sizes), 'axis')}", "max_rank", self.max_rank
            )
        if tensor.elements > self.max_elements:
            raise exceeded(
                f"{name} has {counted(tensor.elements, 'element')}",
                "max_elements",
                self.max_elements,
            )

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan whose intermediate results or work are too large."""
        if plan.largest_intermediate > self.max_elements:
            came = f"an intermediate result has {plan.largest_intermediate} elements"
            raise exceeded(came, "max_elements", self.max_elements)
        if plan.work > self.max_work:
            raise exceeded(
                f"the request takes {plan.work} multiplications", "max_work", self.max_work
            )


def exceeded(
    came: str, limit: str, allowed: int, kind: type[RequestLimitError] = RequestLimitError
) -> RequestLimitError:
    """Say that a limit is exceeded, and which setting raises it."""
    setting = f"GRADWIRE_{limit.upper()}"
    return kind(
        f"{came}; this server allows {allowed} (its setting {setting})",
        limit=limit,
        allowed=allowed,
    )
