"""A case in PyTorch's words: which operator it is, and what its tensors look like."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.cases import Array, Case, Layout


def torch_name(case: Case, spatial: int) -> str:
    """Return the aten operator; where both nearest ones mean the same, the faster one."""
    if case.kind != "nearest":
        kind = {1: "linear", 2: "bilinear", 3: "trilinear"}[spatial]
        return f"upsample_{'bicubic' if case.kind == 'cubic' else kind}{spatial}d_backward"
    whole = all(dst % src == 0 for src, dst in zip(case.src, case.dst, strict=True))
    return f"{'' if whole else '_'}upsample_nearest{'' if whole else '_exact'}{spatial}d_backward"


def torch_view(torch: Any, array: Array, layout: Layout) -> Any:
    """View an array as a tensor N, C, X."""
    if array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return in_layout(tensor, layout)


def in_layout(tensor: Any, layout: Layout) -> Any:
    """View a tensor of a layout as N, C, X; NXC is channels_last, and 1-D then 2-D of height 1."""
    if layout == "NCX":
        return tensor
    if tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    return tensor.movedim(-1, 1)
