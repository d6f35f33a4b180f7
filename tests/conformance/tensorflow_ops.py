"""TensorFlow's raw ops and their gradients."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Row, Section, Tally
from gradwire import ops
from support.oracles import axis_tables, live_tensorflow
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix


def _matrix(case: AxisCase) -> Matrix:
    operator = ops.TfResize(**case.attributes)
    return axis_tables.axis_matrix(operator, case, rank=4, axis=1, dtype=np.float32)


def _words(case: AxisCase) -> str:
    return ", ".join((case.attributes["kind"], *(k for k in case.attributes if k != "kind")))


def rows() -> list[Row]:
    """Compare with the installed TensorFlow."""
    tally = compared(importlib.import_module("tensorflow"))
    return sorted(tally.rows(), key=lambda row: (row.peer, row.operator))


def compared(tf: Any) -> Tally:
    tally = Tally()
    for case in live_tensorflow.cases(1000):
        matrix, words = _matrix(case), _words(case)
        key = ("tensorflow: weights", "tf_resize", words, "float32")
        tally.add(key, matrix, live_tensorflow.forward_table(tf, case))
        key = ("tensorflow: weights", "tf_resize_grad", words, "float32")
        tally.add(key, matrix, live_tensorflow.gradient_table(tf, case))
    for flags in live_tensorflow.FLAGS:
        for inputs, outputs in axis_tables.lengths_up_to(64):
            case = AxisCase({"kind": "nearest_neighbor", **flags}, inputs, outputs)
            read = np.array(live_tensorflow.nearest_indices(tf, case))
            words = f"{_words(case)}, {UP_TO_64}"
            key = ("tensorflow: elements read", "tf_resize", words, "float32")
            tally.add(key, _matrix(case).argmax(axis=1), read)
    return tally


SECTION = Section(
    "TensorFlow",
    ("tensorflow",),
    "dialects/tensorflow.md",
    "Weights of the raw ops and of their gradients are read off one-hot tensors of up to 300"
    " elements; their bits must be equal.",
    rows,
)
