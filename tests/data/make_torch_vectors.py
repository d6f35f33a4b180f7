"""Make torch_align_corners.npz: gradients of PyTorch's F.interpolate with align_corners.

Run where torch 2.13.0 (CPU) is installed:  python tests/data/make_torch_vectors.py
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = [
    # source, result: batch, channel, spatial
    ((2, 3, 5), (2, 3, 11)),
    ((2, 3, 11), (2, 3, 5)),
    ((1, 2, 1), (1, 2, 6)),
    ((1, 2, 6), (1, 2, 1)),
    ((1, 1, 1), (1, 1, 1)),
    ((1, 1, 224), (1, 1, 57)),
    ((1, 1, 1000), (1, 1, 1333)),
    ((2, 3, 4, 6), (2, 3, 7, 9)),
    ((1, 3, 28, 30), (1, 3, 9, 4)),
    ((2, 2, 7, 1), (2, 2, 3, 5)),
    ((1, 2, 6, 5), (1, 2, 1, 13)),
    ((1, 1, 33, 17), (1, 1, 65, 17)),
    ((1, 2, 3, 4, 5), (1, 2, 5, 7, 9)),
    ((2, 1, 6, 5, 8), (2, 1, 4, 9, 3)),
    ((1, 1, 1, 6, 2), (1, 1, 4, 1, 2)),
]
MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def main() -> None:
    """Write one gradient pair per shape and dtype, widened to float64 without loss."""
    torch: Any = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(20240229)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    cases: list[dict[str, Any]] = []
    for source, result in SHAPES:
        for dtype in DTYPES:
            x = torch.zeros(source, dtype=getattr(torch, dtype), requires_grad=True)
            mode = MODES[len(source)]
            y = torch.nn.functional.interpolate(x, result[2:], mode=mode, align_corners=True)
            g = torch.randn(result, generator=generator, dtype=torch.float64).to(y.dtype)
            y.backward(g)
            wide = np.float64 if dtype == "float64" else np.float32
            arrays[f"output_gradient_{len(cases)}"] = g.double().numpy().astype(wide)
            arrays[f"input_gradient_{len(cases)}"] = x.grad.double().numpy().astype(wide)
            cases.append({"mode": mode, "dtype": dtype, "source": source, "result": result})
    about = {"torch": torch.__version__, "cases": cases}
    path = Path(__file__).with_name("torch_align_corners.npz")
    arrays["about"] = np.array(json.dumps(about))
    np.savez_compressed(path, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
