"""PyTorch on a CPU: weights of one axis, whole tensors, and its own samples."""

from __future__ import annotations

import importlib
import itertools
import random
from typing import Any

from conformance.rows import UP_TO_64, Row, Section, Tally
from gradwire import ops
from support.oracles import axis_tables
from support.oracles.dialect_oracles import evaluate
from support.oracles.torch_axes import RANKS, AxisCase, allowed, random_case


def _words(mode: str, given: dict[str, Any]) -> str:
    flags = (name for name in ("align_corners", "antialias") if given.get(name))
    return ", ".join((mode, *flags))


def _weights(tally: Tally, case: AxisCase, words: str) -> None:
    for operator, ours, theirs in zip(
        ("torch_interpolate", "torch_upsample_backward"), case.ours(), case.theirs(), strict=True
    ):
        key = ("torch: weights", operator, words, case.dtype)
        tally.add(key, ours, theirs, allowed=allowed(case))


def _samples(tally: Tally) -> None:
    live: Any = importlib.import_module("dialects.test_torch_live")
    for dtype in live.SAMPLE_ROUNDING:
        for operator, source, expected in live.sample_calls(dtype):
            key = ("torch: OpInfo samples", operator.name, "all of torch.testing", dtype)
            result = evaluate(operator, source, expected.shape)
            tally.add(key, result, expected, allowed=live.sample_allowed(dtype, expected))


def _tensors(tally: Tally) -> None:
    live: Any = importlib.import_module("dialects.test_torch_live")
    for mode, dtype in itertools.product(RANKS, live.DTYPES):
        if not live.compared(mode, dtype):
            continue
        for operator, given, expected in live.calls(mode, dtype):
            difference, rounding = live.differences(operator, given, expected)
            words = _words(mode, {name: getattr(operator, name) for name in ops_flags(operator)})
            key = ("torch: whole tensors", operator.name, words, dtype)
            tally.add(key, difference, 0 * difference, allowed=rounding)


def ops_flags(operator: ops.Operator) -> list[str]:
    """Return the flags that an operator has."""
    return [name for name in ("align_corners", "antialias") if hasattr(operator, name)]


def rows() -> list[Row]:
    """Compare with the installed PyTorch."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)  # tensors this small are many times slower with several
    tally = Tally()
    for mode in RANKS:
        rng = random.Random(mode)  # noqa: S311 - a choice of cases
        for _ in range(300):
            case = random_case(rng, mode)
            _weights(tally, case, _words(mode, case.attributes))
    for mode, dtype in itertools.product(("nearest", "nearest-exact"), ("float32", "float64")):
        for inputs, outputs in axis_tables.lengths_up_to(64):
            case = AxisCase(mode, 3, dtype, inputs, outputs, None, {})
            _weights(tally, case, f"{mode}, {UP_TO_64}")
    _samples(tally)
    _tensors(tally)
    return tally.rows()


SECTION = Section(
    "PyTorch",
    ("torch", "expecttest"),
    "dialects/torch.md",
    "Weights are read off one-hot tensors and one-hot gradients, with lengths up to 300, sizes and"
    " scale factors; their bits must be equal, save for sines in float64 (2**-51). Samples and"
    " whole tensors may differ by the roundings of sums, whose order is PyTorch's own. Whole"
    " tensors include second gradients.",
    rows,
)
