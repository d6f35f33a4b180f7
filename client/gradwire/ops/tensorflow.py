"""TensorFlow's resizing operators.

Tensors are NHWC: batch, height, width, channel. Height and width are resampled, with the float32
coordinates and weights of TensorFlow's CPU kernels for every type of tensor;
docs/dialects/tensorflow.md has the formulas. A gradient is the exact adjoint of its forward.

Source: https://www.tensorflow.org/api_docs/python/tf/raw_ops/ResizeBilinear
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from gradwire.errors import InvalidRequestError
from gradwire.ops._base import Choice, Flag, Integers, Operator, attribute

Kind = Literal["bilinear", "nearest_neighbor", "bicubic"]

SPATIAL_AXES = 2


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _TensorflowResize(Operator):
    min_rank: ClassVar[int] = 4
    max_rank: ClassVar[int] = 4

    kind: Kind = field(
        metadata=attribute(
            Choice(
                allowed=get_args(Kind),
                synonyms=(("nearest", "nearest_neighbor"),),
                description="The raw op: ResizeBilinear, ResizeNearestNeighbor or ResizeBicubic.",
            )
        )
    )
    size: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=SPATIAL_AXES,
                bits=32,
                default_text="not given",
                description="Height and width of the forward's output, in elements, each at least "
                "1; they must equal that tensor's.",
            )
        ),
    )
    align_corners: bool = field(
        default=False,
        metadata=attribute(Flag(description="Whether the corner elements of both correspond.")),
    )
    half_pixel_centers: bool = field(
        default=False,
        metadata=attribute(
            Flag(
                description="Whether elements have their centers at halves; not together with "
                "align_corners.",
            )
        ),
    )

    def _check_together(self) -> None:
        if len(self.size) not in {0, SPATIAL_AXES}:
            raise InvalidRequestError.of(
                self.path("size"), f"is {self.size}; give height and width, or leave it out"
            )
        if self.align_corners and self.half_pixel_centers:
            raise InvalidRequestError.of(
                self.path("half_pixel_centers"),
                "is True, and so is align_corners; TensorFlow takes one of the two",
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TfResizeGrad(_TensorflowResize):
    """Gradient of TfResize: takes grads, of the output's shape, to that of the original image.

        TfResizeGrad(kind="bilinear", half_pixel_centers=True)

    takes a gradient of shape (8, 112, 112, 64) to one of shape (8, 56, 56, 64), if that is the
    output shape asked for.
    """

    name: ClassVar[str] = "tf_resize_grad"
    source: ClassVar[str] = (
        "TensorFlow ResizeBilinearGrad, ResizeNearestNeighborGrad and ResizeBicubicGrad, "
        "https://www.tensorflow.org/api_docs/python/tf/raw_ops/ResizeBilinearGrad"
    )
    gradient: ClassVar[bool] = True
    counterpart: ClassVar[str] = "tf_resize"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TfResize(_TensorflowResize):
    """Resamples height and width to size."""

    name: ClassVar[str] = "tf_resize"
    source: ClassVar[str] = (
        "TensorFlow ResizeBilinear, ResizeNearestNeighbor and ResizeBicubic, "
        "https://www.tensorflow.org/api_docs/python/tf/raw_ops/ResizeBilinear"
    )
    gradient: ClassVar[bool] = False
    counterpart: ClassVar[str] = "tf_resize_grad"
    output_required: ClassVar[bool] = False


OPERATORS = (TfResizeGrad, TfResize)
