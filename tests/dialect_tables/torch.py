"""PyTorch's operators."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gradwire import ops, v1
from support.oracles.dialect_oracles import Pair
from support.oracles.dialect_table import Case, Example, Shape, Table, shapes

MODES = {
    3: ["nearest", "nearest-exact", "linear", "area"],
    4: ["nearest", "nearest-exact", "bilinear", "bicubic", "area", "lanczos"],
    5: ["nearest", "nearest-exact", "trilinear", "area"],
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw attributes and shapes that fit them; the gradient is the forward's adjoint."""
    rank = draw(st.integers(3, 5))
    mode = draw(st.sampled_from(MODES[rank]))
    attributes: dict[str, Any] = {"mode": mode}
    if mode.endswith("linear") or mode == "bicubic":
        attributes["align_corners"] = draw(st.sampled_from([None, False, True]))
    if mode in {"bilinear", "bicubic", "lanczos"}:
        attributes["antialias"] = mode == "lanczos" or draw(st.booleans())
    source = draw(shapes(rank))
    spatial: Shape = draw(shapes(rank))[2:]
    if draw(st.booleans()):
        least = [1 / size for size in source[2:]]
        factors = [draw(st.floats(low, max(3.0, low))) for low in least]
        factors = [f if int(size * f) else 1.0 for f, size in zip(factors, source[2:], strict=True)]
        spatial = tuple(int(size * f) for f, size in zip(factors, source[2:], strict=True))
        attributes["scale_factor"] = factors
        attributes["recompute_scale_factor"] = draw(st.sampled_from([None, False, True]))
    else:
        attributes["size"] = spatial
    pair = Pair(
        ops.TorchInterpolate(**attributes),
        ops.TorchUpsampleBackward(**attributes, follow="forward_adjoint"),
    )
    nearest = mode.startswith("nearest")
    return Case(pair, source, (*source[:2], *spatial), nearest, 0 if nearest else 2.0**-45)


TABLE = Table(
    page="docs/dialects/torch.md",
    cases=cases(),
    examples=[
        Example(
            ops.TorchUpsampleBackward(scale_factor=2),
            (1, 1, 6),
            (1, 1, 3),
            [[[3, 7, 11]]],
        ),
        Example(
            ops.TorchUpsampleBackward(
                mode="bicubic", align_corners=True, follow="forward_adjoint", size=(5, 3)
            ),
            (2, 1, 5, 3),
            (2, 1, 3, 7),
        ),
        Example(
            ops.TorchUpsampleBackward(mode="trilinear", scale_factor=(1.5, 0.75, 1.3)),
            (1, 2, 6, 3, 5),
            (1, 2, 4, 4, 4),
        ),
        Example(
            ops.TorchUpsampleBackward(mode="bilinear", antialias=True, align_corners=False),
            (1, 1, 3, 4),
            (1, 1, 8, 5),
        ),
        Example(ops.TorchInterpolate(mode="area", size=2), (1, 1, 5), (1, 1, 2), [[[2, 4]]]),
        Example(
            ops.TorchInterpolate(
                mode="nearest-exact", scale_factor=1.7, recompute_scale_factor=True
            ),
            (1, 2, 4, 3),
            (1, 2, 6, 5),
        ),
        Example(
            ops.TorchInterpolate(mode="lanczos", antialias=True, size=(4, 3)),
            (1, 1, 9, 8),
            (1, 1, 4, 3),
        ),
    ],
    enums={
        "TorchInterpolate.Mode": [
            "UNSPECIFIED",
            "NEAREST",
            "NEAREST_EXACT",
            "LINEAR",
            "BILINEAR",
            "TRILINEAR",
            "BICUBIC",
            "AREA",
            "LANCZOS",
        ],
        "TorchInterpolate.Follow": ["UNSPECIFIED", "BACKWARD_OP", "FORWARD_ADJOINT"],
    },
    golden={
        # 1.5 in float64 is 3ff8000000000000.
        "TorchInterpolate": (
            v1.TorchInterpolate(
                size=(4, 300),
                scale_factor=(1.5,),
                mode=v1.TorchInterpolate.MODE_LANCZOS,
                align_corners=False,
                recompute_scale_factor=True,
                antialias=True,
                follow=v1.TorchInterpolate.FOLLOW_FORWARD_ADJOINT,
            ),
            "0a 03 04 ac 02 | 12 08 000000000000f83f | 18 08 | 20 00 | 28 01 | 30 01 | 38 02",
        ),
        "Operator torch_upsample_backward": (
            v1.Operator(torch_upsample_backward=v1.TorchInterpolate()),
            "3a 00",
        ),
        "Operator torch_interpolate": (
            v1.Operator(torch_interpolate=v1.TorchInterpolate()),
            "42 00",
        ),
    },
)
