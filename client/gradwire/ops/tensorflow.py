"""TensorFlow's resizing operators.

Tensors are NHWC: batch, height, width, channel. Height and width are resampled, with the float32
coordinates and weights of TensorFlow's CPU kernels for every type of tensor;
docs/dialects/tensorflow.md has the formulas. A gradient is the exact adjoint of its forward.

Source: https://www.tensorflow.org/api_docs/python/tf/raw_ops/ResizeBilinear
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradwire.ops._base import Operator, attribute, operator_class, sequence

Kind = Literal["bilinear", "nearest_neighbor", "bicubic"]

SPATIAL_AXES = 2


@operator_class
class _TensorflowResize(Operator):
    min_rank = 4
    max_rank = 4

    kind: Kind = attribute(
        "The raw op: ResizeBilinear, ResizeNearestNeighbor or ResizeBicubic.",
        synonyms={"nearest": "nearest_neighbor"},
    )
    size: Sequence[int] = sequence(
        "Height and width of the forward's output, in elements, each at least "
        "1; they must equal that tensor's.",
        most=SPATIAL_AXES,
        bits=32,
    )
    align_corners: bool = attribute(
        "Whether the corner elements of both correspond.", default=False
    )
    half_pixel_centers: bool = attribute(
        "Whether elements have their centers at halves; not together with align_corners.",
        default=False,
    )

    def _check_together(self) -> None:
        if len(self.size) not in {0, SPATIAL_AXES}:
            raise self._refused("size", f"is {self.size}; give height and width, or leave it out")
        if self.align_corners and self.half_pixel_centers:
            raise self._refused(
                "half_pixel_centers",
                "is True, and so is align_corners; TensorFlow takes one of the two",
            )


@operator_class
class TfResizeGrad(_TensorflowResize):
    """Gradient of TfResize: takes grads to the original image's gradient.

        TfResizeGrad(kind="bilinear", half_pixel_centers=True)

    takes a gradient of shape (8, 112, 112, 64) to one of shape (8, 56, 56, 64), if that is the
    output shape asked for.
    """

    name = "tf_resize_grad"
    source = (
        "TensorFlow ResizeBilinearGrad, ResizeNearestNeighborGrad and ResizeBicubicGrad, "
        "https://www.tensorflow.org/api_docs/python/tf/raw_ops/ResizeBilinearGrad"
    )
    counterpart = "tf_resize"


@operator_class
class TfResize(_TensorflowResize):
    """Resamples height and width to size."""

    name = "tf_resize"
    source = (
        "TensorFlow ResizeBilinear, ResizeNearestNeighbor and ResizeBicubic, "
        "https://www.tensorflow.org/api_docs/python/tf/raw_ops/ResizeBilinear"
    )
    gradient = False
    counterpart = "tf_resize_grad"
    output_required = False


OPERATORS = (TfResizeGrad, TfResize)
