"""What PyTorch reads along one axis, and what its backward scatters along it, by unit vectors.

    PYTHONPATH=tests python -m support.oracles.torch_axes

writes data/torch_axes.npz, where torch 2.13.0 (CPU) is installed.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradwire import ops
from gradwire_server.plans import Plan
from support.oracles.dialect_oracles import Matrix, Tensor, lowered

STORED = Path(__file__).parents[2] / "data" / "torch_axes.npz"

RANKS = {
    "nearest": (3, 4, 5),
    "nearest-exact": (3, 4, 5),
    "linear": (3,),
    "bilinear": (4,),
    "trilinear": (5,),
    "bicubic": (4,),
    "area": (3, 4, 5),
    "lanczos": (4,),
}
WITH_CORNERS = ("linear", "bilinear", "trilinear", "bicubic")
WITH_ANTIALIAS = ("bilinear", "bicubic")


@dataclass(frozen=True, slots=True)
class AxisCase:
    """The first spatial axis of a call; the others keep their length.

    attributes  arguments of F.interpolate, but for mode, size and scale_factor
    scale       None where size tells the output's length
    """

    mode: str
    rank: int
    dtype: str
    inputs: int
    outputs: int
    scale: float | None
    attributes: dict[str, bool]

    @property
    def others(self) -> tuple[int, ...]:
        """Lengths of the other spatial axes.

        At a width of 1 the antialiased forward reads every row as the first; see test_torch_live.
        """
        return (2 if self.attributes.get("antialias") else 1,) * (self.rank - 3)

    def arguments(self) -> dict[str, Any]:
        if self.scale is None:
            return {"mode": self.mode, "size": (self.outputs, *self.others), **self.attributes}
        scales = (self.scale, *(1.0 for _ in self.others))
        return {"mode": self.mode, "scale_factor": scales, **self.attributes}

    def ours(self) -> tuple[Matrix, Matrix]:
        """Return the forward's weights and the backward's: [outputs, inputs] of the dtype."""
        source, result = (1, 1, self.inputs, *self.others), (1, 1, self.outputs, *self.others)
        forward: Any = ops.TorchInterpolate(**self.arguments())
        backward: Any = ops.TorchUpsampleBackward(**self.arguments())
        adjoint: Any = ops.TorchUpsampleBackward(follow="forward_adjoint", **self.arguments())
        tables = [
            self._table(lowered(forward, source, result, self.dtype)),
            self._table(lowered(backward, result, source, self.dtype)).T,
            self._table(lowered(adjoint, result, source, self.dtype)).T,
        ]
        np.testing.assert_array_equal(tables[2], tables[0])
        return tables[0], tables[1]

    def _table(self, plan: Plan) -> Tensor:
        for one in plan.passes:
            if one.axis == 2:
                return one.map.dense().astype(self.dtype)
        return np.eye(self.inputs, dtype=self.dtype)

    def theirs(self) -> tuple[Tensor, Tensor]:
        torch: Any = importlib.import_module("torch")
        arguments = self.arguments()
        x = torch.from_numpy(self._unit_vectors(self.inputs))
        y = torch.nn.functional.interpolate(x, **arguments)
        forward = y.numpy().reshape(self.inputs, self.outputs, -1)[:, :, 0].T
        g = torch.from_numpy(self._unit_vectors(self.outputs))
        shape = (self.outputs, 1, self.inputs, *self.others)
        x = torch.zeros(shape, dtype=g.dtype, requires_grad=True)
        torch.nn.functional.interpolate(x, **arguments).backward(g)
        backward = x.grad.numpy().reshape(self.outputs, self.inputs, -1)[:, :, 0]
        return forward, backward

    def _unit_vectors(self, length: int) -> Tensor:
        vectors = np.zeros((length, 1, length, *self.others), self.dtype)
        each = np.arange(length)
        vectors.reshape(length, length, -1)[each, each, 0] = 1
        return vectors


def allowed(case: AxisCase) -> float:
    """Return how far weights may be from PyTorch's: equal bits, save for sines in float64.

    There PyTorch has whatever the machine's C library gives, which is not always the nearest.
    """
    return 2.0**-51 if (case.mode, case.dtype) == ("lanczos", "float64") else 0


def check(case: AxisCase, forward: Tensor, backward: Tensor) -> None:
    for ours, theirs in zip(case.ours(), (forward, backward), strict=True):
        assert np.all(np.abs(ours - theirs) <= allowed(case)), case


def random_case(rng: random.Random, mode: str) -> AxisCase:
    """Draw a case: lengths of every order, scales near 1 and 2 where PyTorch takes short cuts."""
    antialias = mode == "lanczos" or (mode in WITH_ANTIALIAS and rng.random() < 0.5)
    attributes = {"antialias": True} if antialias else {}
    if mode in WITH_CORNERS:
        attributes["align_corners"] = rng.random() < 0.5
    inputs, outputs = (rng.randint(1, rng.choice([4, 20, 120, 300])) for _ in range(2))
    rank, dtype = rng.choice(RANKS[mode]), rng.choice(["float32", "float64"])
    if rng.random() < 0.25:
        return AxisCase(mode, rank, dtype, inputs, outputs, None, attributes)
    near = rng.uniform(0, 0.9) / inputs
    scale = rng.choice([outputs / inputs, rng.uniform(1 / inputs, 4), 1 + near, 2 + near])
    scale = scale if inputs * scale >= 1 else 1.0
    if rng.random() < 0.3:
        attributes["recompute_scale_factor"] = True
    return AxisCase(mode, rank, dtype, inputs, int(inputs * scale), scale, attributes)


# PyTorch's two tables differ in these; see docs/dialects/torch.md.
NOT_ADJOINT = [
    AxisCase("nearest", 3, "float64", 2, 82, None, {}),
    AxisCase("nearest", 3, "float32", 29, 58, 2.01, {}),
    AxisCase("nearest-exact", 3, "float32", 4, 418, None, {}),
    AxisCase("nearest-exact", 3, "float64", 2, 41, None, {}),
    AxisCase("bicubic", 4, "float32", 9, 9, 1.1, {"align_corners": False}),
    AxisCase("bicubic", 4, "float32", 9, 13, None, {"align_corners": False}),
    AxisCase("bilinear", 4, "float32", 9, 9, 1.1, {"antialias": True}),
    AxisCase("bicubic", 4, "float64", 9, 9, 1.1, {"antialias": True}),
    AxisCase("lanczos", 4, "float32", 9, 9, 1.1, {"antialias": True}),
]
# A nearest index that float32 moves, and one below and one above the size where kernels change.
ODD = [
    AxisCase("nearest", 4, "float32", 2, 94, None, {}),
    AxisCase("nearest", 4, "float64", 2, 110, None, {}),
    AxisCase("nearest", 4, "float64", 61, 127, 2.0833, {}),
    AxisCase("nearest", 4, "float64", 61, 128, 2.0998, {}),
    AxisCase("nearest-exact", 4, "float64", 2, 55, None, {}),
    AxisCase("area", 3, "float32", 1, 7, None, {}),
    AxisCase("lanczos", 4, "float64", 40, 3, None, {"antialias": True}),
]


def stored() -> Iterator[tuple[AxisCase, Tensor, Tensor]]:
    with np.load(STORED) as file:
        for i, about in enumerate(json.loads(str(file["about"]))["cases"]):
            yield AxisCase(**about), file[f"forward_{i}"], file[f"backward_{i}"]


def main() -> None:
    torch: Any = importlib.import_module("torch")
    rng = random.Random(20261122)  # noqa: S311 - a choice of cases
    drawn = [random_case(rng, mode) for mode in RANKS for _ in range(60)]
    few = [case for case in drawn if case.inputs * case.outputs <= 500]
    cases = [*NOT_ADJOINT, *ODD, *few]
    arrays: dict[str, Tensor] = {}
    for i, case in enumerate(cases):
        arrays[f"forward_{i}"], arrays[f"backward_{i}"] = case.theirs()
    about = {"torch": torch.__version__, "cases": [asdict(case) for case in cases]}
    arrays["about"] = np.array(json.dumps(about))
    np.savez_compressed(STORED, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
