"""TensorFlow's raw ops and their gradients along one axis, read off by one-hot images."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Row, Section, Tally
from gradwire import ops
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix

STORED = "tensorflow_tables.npz"
KINDS = {
    "bilinear": "ResizeBilinear",
    "nearest_neighbor": "ResizeNearestNeighbor",
    "bicubic": "ResizeBicubic",
}
FLAGS: tuple[dict[str, bool], ...] = ({}, {"align_corners": True}, {"half_pixel_centers": True})
ATTRIBUTES: list[dict[str, Any]] = [
    {"kind": kind, **flags} for kind, flags in itertools.product(KINDS, FLAGS)
]
# One element, equal lengths, whole and broken ratios, and a scale that float32 rounds across.
SIZES = ((1, 7), (7, 1), (6, 6), (3, 9), (10, 4), (5, 14), (29, 18), (20, 41))


def cases(count: int) -> list[AxisCase]:
    generator = np.random.default_rng(9)
    return [
        AxisCase(ATTRIBUTES[i % len(ATTRIBUTES)], *axis_tables.sizes(generator, largest=300))
        for i in range(count)
    ]


def forward_table(tf: Any, case: AxisCase) -> Matrix:
    kind, *flags = _arguments(case)
    images = np.eye(case.inputs, dtype=np.float32)[:, :, np.newaxis, np.newaxis]
    op = getattr(tf.raw_ops, KINDS[kind])
    result = op(images=images, size=[case.outputs, 1], **dict(flags))
    table: Matrix = result.numpy()[:, :, 0, 0].T.astype(np.float64)
    return table


def gradient_table(tf: Any, case: AxisCase) -> Matrix:
    kind, *flags = _arguments(case)
    grads = np.eye(case.outputs, dtype=np.float32)[:, :, np.newaxis, np.newaxis]
    op = getattr(tf.raw_ops, f"{KINDS[kind]}Grad")
    original = np.zeros((case.outputs, case.inputs, 1, 1), np.float32)
    shape = {"size": [case.inputs, 1]} if "Nearest" in KINDS[kind] else {"original_image": original}
    result = op(grads=grads, **shape, **dict(flags))
    table: Matrix = result.numpy()[:, :, 0, 0].astype(np.float64)
    return table


def nearest_indices(tf: Any, case: AxisCase) -> list[int]:
    """Return what the nearest neighbor op reads, from one image of its own indices."""
    _, *flags = _arguments(case)
    images = np.arange(case.inputs, dtype=np.float32)[np.newaxis, :, np.newaxis, np.newaxis]
    op = tf.raw_ops.ResizeNearestNeighbor
    read = op(images=images, size=[case.outputs, 1], **dict(flags)).numpy()
    indices: list[int] = read.ravel().astype(int).tolist()
    return indices


def _arguments(case: AxisCase) -> Any:
    return case.attributes["kind"], *((k, v) for k, v in case.attributes.items() if k != "kind")


def table_here(case: AxisCase) -> Matrix:
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
    for case in cases(1000):
        matrix, words = table_here(case), _words(case)
        key = ("tensorflow: weights", "tf_resize", words, "float32")
        tally.add(key, matrix, forward_table(tf, case))
        key = ("tensorflow: weights", "tf_resize_grad", words, "float32")
        tally.add(key, matrix, gradient_table(tf, case))
    for flags in FLAGS:
        for inputs, outputs in axis_tables.lengths_up_to(64):
            case = AxisCase({"kind": "nearest_neighbor", **flags}, inputs, outputs)
            read = np.array(nearest_indices(tf, case))
            words = f"{_words(case)}, {UP_TO_64}"
            key = ("tensorflow: elements read", "tf_resize", words, "float32")
            tally.add(key, table_here(case).argmax(axis=1), read)
    return tally


SECTION = Section(
    "TensorFlow",
    ("tensorflow",),
    "dialects/tensorflow.md",
    "Weights of the raw ops and of their gradients are read off one-hot tensors of up to 300"
    " elements; their bits must be equal.",
    rows,
)


def main() -> None:
    tf: Any = importlib.import_module("tensorflow")

    stored = [AxisCase(each, *sizes) for each in ATTRIBUTES for sizes in SIZES]
    tables = [(case, forward_table(tf, case)) for case in stored]
    axis_tables.save(STORED, {"tensorflow": tf.__version__}, tables)


if __name__ == "__main__":
    main()
