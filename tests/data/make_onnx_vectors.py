"""Make onnx_resize.npz: ONNX's published node tests of Resize, with gradients of its reference.

Run where onnx 1.23.2 and pytest are installed:

    PYTHONPATH=tests:client:server python tests/data/make_onnx_vectors.py
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from support.oracles.onnx_models import NodeCase, node_cases, reference


def gradient(case: NodeCase, g: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Transpose the reference: <f(e) - f(0), g> for every unit tensor e."""
    outside = reference(case.attributes, np.zeros(case.x.shape))
    result = np.zeros(case.x.shape)
    for element in np.ndindex(case.x.shape):
        unit = np.zeros(case.x.shape)
        unit[element] = 1
        result[element] = np.sum((reference(case.attributes, unit) - outside) * g)
    return result


def main() -> None:
    """Write x, y, a gradient of y and the gradient of x, which that makes, of every case."""
    rng = np.random.default_rng(20240229)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    cases = node_cases()
    for number, case in enumerate(cases):
        g = rng.integers(-9, 10, case.y.shape).astype(np.float32)
        arrays[f"x_{number}"], arrays[f"y_{number}"] = case.x, case.y
        arrays[f"output_gradient_{number}"] = g
        arrays[f"input_gradient_{number}"] = gradient(case, g)
    about = {
        "onnx": importlib.import_module("onnx").__version__,
        "cases": [{"name": case.name, "attributes": case.attributes} for case in cases],
    }
    path = Path(__file__).with_name("onnx_resize.npz")
    arrays["about"] = np.array(json.dumps(about))
    np.savez_compressed(path, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
