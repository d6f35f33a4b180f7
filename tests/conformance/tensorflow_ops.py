"""TensorFlow's raw ops and their gradients along one axis, read off by one-hot images."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Section, Tally
from gradwire import ops
from support.oracles.dialect_oracles import AxisCase, Matrix, axis_matrix, draw_sizes, save_tables

STORED = "tensorflow_tables.npz"
KINDS = {
    "bilinear": "ResizeBilinear",
    "nearest_neighbor": "ResizeNearestNeighbor",
    "bicubic": "ResizeBicubic",
}
_FLAGS: tuple[dict[str, bool], ...] = ({}, {"align_corners": True}, {"half_pixel_centers": True})
_ATTRIBUTES: list[dict[str, Any]] = [
    {"kind": kind, **flags} for kind, flags in itertools.product(KINDS, _FLAGS)
]
# One element, equal lengths, whole and broken ratios, and a scale that float32 rounds across.
_SIZES = ((1, 7), (7, 1), (6, 6), (3, 9), (10, 4), (5, 14), (29, 18), (20, 41))


def _forward(tf: Any, case: AxisCase, rows: Any) -> Any:
    """Resize each of some rows."""
    kind, *flags = case.attributes
    op = getattr(tf.raw_ops, KINDS[case.attributes[kind]])
    images = np.asarray(rows, np.float32)[:, :, np.newaxis, np.newaxis]
    given = {flag: case.attributes[flag] for flag in flags}
    return op(images=images, size=[case.outputs, 1], **given).numpy()[:, :, 0, 0]


def gradient(tf: Any, kind: str, grads: Any, shape: tuple[int, ...], **flags: bool) -> Any:
    source = {"original_image": np.zeros(shape, np.float32)}
    told = {"size": shape[1:3]} if kind == "nearest_neighbor" else source
    return getattr(tf.raw_ops, f"{KINDS[kind]}Grad")(grads=grads, **told, **flags).numpy()


def table_here(case: AxisCase) -> Matrix:
    operator = ops.TfResize(**case.attributes)
    return axis_matrix(operator, case, rank=4, axis=1, dtype=np.float32)


def _compare(tally: Tally) -> None:
    tf: Any = importlib.import_module("tensorflow")
    generator = np.random.default_rng(9)
    for i in range(1000):
        attributes = _ATTRIBUTES[i % len(_ATTRIBUTES)]
        case = AxisCase(attributes, *draw_sizes(generator, largest=300))
        matrix, words = table_here(case), ", ".join((attributes["kind"], *list(attributes)[1:]))
        theirs = _forward(tf, case, np.eye(case.inputs)).T
        tally.add(("tensorflow: weights", "tf_resize", words, "float32"), matrix, theirs)
        grads = np.eye(case.outputs, dtype=np.float32)[:, :, np.newaxis, np.newaxis]
        theirs = gradient(tf, grads=grads, shape=(case.outputs, case.inputs, 1, 1), **attributes)
        key = ("tensorflow: weights", "tf_resize_grad", words, "float32")
        tally.add(key, matrix, theirs[:, :, 0, 0])
    for flags in _FLAGS:
        for inputs, outputs in tally.lengths():
            case = AxisCase({"kind": "nearest_neighbor", **flags}, inputs, outputs)
            (read,) = _forward(tf, case, [np.arange(inputs)])
            words = ", ".join(("nearest_neighbor", *flags, UP_TO_64))
            key = ("tensorflow: elements read", "tf_resize", words, "float32")
            tally.add(key, table_here(case).argmax(axis=1), read)


SECTION = Section(
    "TensorFlow",
    ("tensorflow",),
    "dialects/tensorflow.md",
    "Weights of the raw ops and of their gradients are read off one-hot tensors of up to 300"
    " elements; their bits must be equal.",
    _compare,
)

if __name__ == "__main__":
    installed: Any = importlib.import_module("tensorflow")
    every = [AxisCase(each, *sizes) for each in _ATTRIBUTES for sizes in _SIZES]
    stored = [(case, _forward(installed, case, np.eye(case.inputs)).T) for case in every]
    save_tables(STORED, {"tensorflow": installed.__version__}, stored)
