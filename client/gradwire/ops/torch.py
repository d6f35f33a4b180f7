"""PyTorch's interpolation operators.

Tensors have a batch axis, a channel axis and 1 to 3 spatial axes, which are resampled. The
arguments are those of torch.nn.functional.interpolate, and the weights those of torch 2.13 on a
CPU: float64 for float64 tensors, float32 for all others. docs/dialects/torch.md has the formulas.

PyTorch's own backward is not always the adjoint of its own forward; `follow` selects one of them.

Source: https://docs.pytorch.org/docs/2.13/generated/torch.nn.functional.interpolate.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from gradwire.ops._base import Operator, attribute, operator_class, sequence

Mode = Literal[
    "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area", "lanczos"
]
Follow = Literal["backward_op", "forward_adjoint"]

MAX_SPATIAL_AXES = 3
_WITH_CORNERS = ("linear", "bilinear", "trilinear", "bicubic")
_WITH_ANTIALIAS = ("bilinear", "bicubic", "lanczos")


@operator_class
class _TorchInterpolate(Operator):
    min_rank = 3
    max_rank = 2 + MAX_SPATIAL_AXES

    size: int | Sequence[int] = sequence(
        "Spatial sizes of the forward's output, in elements, each at least 1, "
        "one per spatial axis, or one for all; they must equal that tensor's.",
        most=MAX_SPATIAL_AXES,
        bits=64,
    )
    scale_factor: float | Sequence[float] = sequence(
        "Spatial sizes of the forward's output over its input's, finite and "
        "above 0, one per spatial axis, or one for all; the output has "
        "trunc(input * scale_factor) elements. Not together with size.",
        most=MAX_SPATIAL_AXES,
        bits=64,
        positive=True,
    )
    mode: Mode = attribute(
        "How an output element of the forward reads the input: linear on 1 "
        "spatial axis, bilinear, bicubic and lanczos on 2, trilinear on 3, the others on "
        "any.",
        default="nearest",
    )
    align_corners: bool | None = attribute(
        "Whether the corner elements of both tensors correspond; with linear, "
        "bilinear, trilinear and bicubic.",
        default=None,
        default_text="false; the modes without it take no value",
    )
    recompute_scale_factor: bool | None = attribute(
        "Whether coordinates come from the two sizes even where scale_factor is given.",
        default=None,
        default_text="false",
    )
    antialias: bool = attribute(
        "Whether the filter is stretched where an axis shrinks; with bilinear, "
        "bicubic and lanczos, which needs it.",
        default=False,
    )

    def _check_together(self) -> None:
        if self.size and self.scale_factor:
            raise self._refused(
                "scale_factor",
                f"is {self.scale_factor}, and size is {self.size}; give one of the two",
            )
        if self.recompute_scale_factor and self.size:
            raise self._refused("recompute_scale_factor", "is True; with size leave it out")
        self._check_antialias()
        lanczos = self.mode == "lanczos" and self.align_corners is False
        if self.align_corners is not None and self.mode not in _WITH_CORNERS and not lanczos:
            raise self._refused(
                "align_corners",
                f"is {self.align_corners}; mode {self.mode!r} does not take it: leave it out",
            )

    def _check_antialias(self) -> None:
        if self.antialias and self.mode not in _WITH_ANTIALIAS:
            raise self._refused(
                "antialias",
                f"is True; mode {self.mode!r} does not support it; {', '.join(_WITH_ANTIALIAS)} do",
            )
        if self.mode == "lanczos" and not self.antialias:
            raise self._refused("antialias", "is False; mode 'lanczos' needs True")


@operator_class
class TorchUpsampleBackward(_TorchInterpolate):
    """Gradient of TorchInterpolate: takes grad_output to grad_input.

        TorchUpsampleBackward(mode="bilinear", scale_factor=2, align_corners=False)

    Without size and scale_factor any two shapes will do, as if size had been given.
    """

    name = "torch_upsample_backward"
    source = (
        "PyTorch aten::upsample_*_backward, "
        "https://docs.pytorch.org/docs/2.13/generated/torch.nn.functional.interpolate.html"
    )
    counterpart = "torch_interpolate"

    follow: Follow = attribute(
        "Which table is transposed: backward_op is what PyTorch's own backward "
        "computes, forward_adjoint the adjoint of what its forward computes.",
        default="backward_op",
    )


@operator_class
class TorchInterpolate(_TorchInterpolate):
    """Resamples the spatial axes to size, or to trunc(input * scale_factor) each."""

    name = "torch_interpolate"
    source = (
        "PyTorch torch.nn.functional.interpolate, "
        "https://docs.pytorch.org/docs/2.13/generated/torch.nn.functional.interpolate.html"
    )
    gradient = False
    counterpart = "torch_upsample_backward"
    output_required = False
    fixed = (("follow", "forward_adjoint"),)

    def for_output(self, output_shape: Sequence[int]) -> TorchInterpolate:
        """Return it with size, if nothing else determines the output's."""
        if self.size or self.scale_factor:
            return self
        # Sizes make recompute_scale_factor needless: it asks for coordinates from the two sizes.
        return dataclasses.replace(self, size=tuple(output_shape[2:]), recompute_scale_factor=None)


OPERATORS = (TorchUpsampleBackward, TorchInterpolate)
