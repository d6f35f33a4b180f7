"""Server whose every operator is the gradient of Keys' cubic.

No operator of this release is a cubic. What one costs end to end is measured all the same: bytes,
steps and kernels are those that the operator will have.
"""

from __future__ import annotations

import numpy as np

from benchmarks.compute.cases import cubic_plan
from gradwire_server import command, dialects
from gradwire_server.plans import Plan


def _lower(
    name: str,
    attributes: object,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    *,
    compute: np.dtype[np.floating] | None = None,
    max_float32_axis: int = 0,
    max_table_entries: int = 0,
) -> Plan:
    del name, attributes, compute, max_float32_axis, max_table_entries
    moved = range(2, len(input_shape))
    return cubic_plan(src=output_shape, dst=input_shape, moved=moved)


if __name__ == "__main__":
    dialects.lower = _lower
    command.main()
