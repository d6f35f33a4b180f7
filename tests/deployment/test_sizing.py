"""What docs/sizing.md says that a call is charged is what it is charged."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gradwire import ops
from gradwire_server.config.settings import Settings
from gradwire_server.engine import (
    EvaluationRequest,
    Limits,
    Prepared,
    Preparer,
    TableCache,
    TensorSpec,
)
from support.manifests import ROOT

PAGE = (ROOT / "docs/sizing.md").read_text()
ROWS = re.findall(r"^\| ([\d.]+) MiB[^|]*\| ([\d.]+) MiB \| (\d+) \|$", PAGE, re.MULTILINE)
SHAPES = [(1, 3, 64, 64), (1, 3, 256, 256), (8, 64, 112, 112), (1, 1, 16384, 32768)]


def prepared(shape: tuple[int, int, int, int]) -> Prepared:
    batch, channels, height, width = shape
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX", sizes=(height, width))
    given = TensorSpec.packed(np.dtype(np.float32), shape)
    result = TensorSpec.packed(np.dtype(np.float32), (batch, channels, height // 2, width // 2))
    preparer = Preparer(Limits(), TableCache(max_entries=1 << 22))
    return preparer.prepare(EvaluationRequest(operator.name, operator, given, result))


@pytest.mark.parametrize(("row", "shape"), [*zip(ROWS, SHAPES, strict=True)], ids=str)
def test_the_table_tells_what_calls_are_charged(
    row: tuple[str, str, str], shape: tuple[int, int, int, int]
) -> None:
    settings, evaluation = Settings(), prepared(shape)
    ways = (evaluation.input.wire_bytes, evaluation.output.wire_bytes)
    if max(ways) <= settings.max_unary_bytes:
        held = evaluation.message_bytes
    else:
        # A chunk each way is on its way through gRPC, twice.
        held = evaluation.memory_bytes + sum(2 * min(settings.max_chunk_bytes, one) for one in ways)
    tensors, charged, at_once = (float(number) for number in row)
    assert sum(ways) / 2**20 == pytest.approx(tensors, rel=0.05)
    assert held / 2**20 == pytest.approx(charged, rel=0.05)
    assert settings.max_memory_bytes // held == at_once
