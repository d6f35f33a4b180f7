"""PyTorch on a CPU: weights of one axis by unit vectors, whole tensors, and its own samples."""

from __future__ import annotations

import importlib
import itertools
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Section, Tally, version
from gradwire import ops
from support.oracles.dialect_oracles import DTYPES, Tensor, axis_table, evaluate, lowered, ulp
from support.oracles.oracles import dense_apply

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
_WITH_CORNERS = ("linear", "bilinear", "trilinear", "bicubic")
_WITH_ANTIALIAS = ("bilinear", "bicubic")


def _torch() -> Any:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)  # tensors this small are many times slower with several
    return torch


def _interpolate(x: Any, **arguments: Any) -> Any:
    return _torch().nn.functional.interpolate(x, **arguments)


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

        At a width of 1 the antialiased forward reads every row as the first; see deviations.toml.
        """
        return (2 if self.attributes.get("antialias") else 1,) * (self.rank - 3)

    def arguments(self) -> dict[str, Any]:
        if self.scale is None:
            return {"mode": self.mode, "size": (self.outputs, *self.others), **self.attributes}
        scales = (self.scale, *(1.0 for _ in self.others))
        return {"mode": self.mode, "scale_factor": scales, **self.attributes}

    def ours(self) -> tuple[Tensor, Tensor]:
        """Return the forward's weights and the backward's: [outputs, inputs] of the dtype."""
        source, result = (1, 1, self.inputs, *self.others), (1, 1, self.outputs, *self.others)
        given = self.arguments()
        adjoint = ops.TorchUpsampleBackward(follow="forward_adjoint", **given)
        forward = axis_table(ops.TorchInterpolate(**given), source, result, 2, self.dtype)
        backward, transposed = (
            axis_table(operator, result, source, 2, self.dtype).T.astype(self.dtype)
            for operator in (ops.TorchUpsampleBackward(**given), adjoint)
        )
        np.testing.assert_array_equal(transposed, forward.astype(self.dtype))
        return transposed, backward

    def theirs(self) -> tuple[Tensor, Tensor]:
        torch, arguments = _torch(), self.arguments()
        y = _interpolate(torch.from_numpy(self._unit_vectors(self.inputs)), **arguments)
        forward = y.numpy().reshape(self.inputs, self.outputs, -1)[:, :, 0].T
        g = torch.from_numpy(self._unit_vectors(self.outputs))
        shape = (self.outputs, 1, self.inputs, *self.others)
        x = torch.zeros(shape, dtype=g.dtype, requires_grad=True)
        _interpolate(x, **arguments).backward(g)
        return forward, x.grad.numpy().reshape(self.outputs, self.inputs, -1)[:, :, 0]

    def _unit_vectors(self, length: int) -> Tensor:
        vectors = np.zeros((length, 1, length, *self.others), self.dtype)
        each = np.arange(length)
        vectors.reshape(length, length, -1)[each, each, 0] = 1
        return vectors

    def allowed(self) -> float:
        """Return how far weights may be from PyTorch's: equal bits, save for sines in float64.

        There PyTorch has whatever the machine's C library gives, which is not always the nearest.
        """
        return 2.0**-51 if (self.mode, self.dtype) == ("lanczos", "float64") else 0


def _random_case(rng: random.Random, mode: str) -> AxisCase:
    """Draw a case: lengths of every order, scales near 1 and 2 where PyTorch takes short cuts."""
    antialias = mode == "lanczos" or (mode in _WITH_ANTIALIAS and rng.random() < 0.5)
    attributes = {"antialias": True} if antialias else {}
    if mode in _WITH_CORNERS:
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


# Of the sum of all terms' magnitudes: roundings of products, sums and, for area, quotients.
_ROUNDING = {"float16": 2.0**-20, "bfloat16": 2.0**-20, "float32": 2.0**-20, "float64": 2.0**-49}


def _arguments(rng: random.Random, mode: str, source: tuple[int, ...]) -> dict[str, Any]:
    chosen: dict[str, Any] = {"mode": mode}
    if mode in _WITH_CORNERS:
        chosen["align_corners"] = rng.random() < 0.5
    if mode == "lanczos" or (mode in _WITH_ANTIALIAS and rng.random() < 0.4):
        chosen["antialias"] = True
    if rng.random() < 0.4:
        # Two or more: an antialiased width of 1 is among the deviations.
        return chosen | {"size": tuple(rng.randint(2, 17) for _ in source[2:])}
    scales = tuple(rng.uniform(2 / size, 3) if size > 1 else 2.5 for size in source[2:])
    return chosen | {"scale_factor": scales, "recompute_scale_factor": rng.random() < 0.5}


def _tensor(numbers: np.random.Generator, shape: Any, dtype: str) -> Any:
    torch = _torch()
    wide = torch.from_numpy(numbers.standard_normal(tuple(map(int, shape))))
    return wide.to(getattr(torch, dtype)).requires_grad_()


def _calls(mode: str, dtype: str) -> Iterator[tuple[ops.Operator, Tensor, Tensor]]:
    """Return forwards, gradients and second gradients: operator, what is given, what comes."""
    rng = random.Random(f"{mode} {dtype}")  # noqa: S311 - a choice of cases
    for _ in range(40):
        source = tuple(rng.randint(1, 3) for _ in range(2))
        source += tuple(rng.randint(2, 14) for _ in range(rng.choice(RANKS[mode]) - 2))
        given = _arguments(rng, mode, source)
        if DTYPES[dtype].itemsize == 2 and given.get("antialias"):
            continue
        numbers = np.random.default_rng(rng.randrange(2**32))
        x = _tensor(numbers, source, dtype)
        y = _interpolate(x, **given)
        g = _tensor(numbers, y.shape, dtype)
        (gradient,) = _torch().autograd.grad(y, x, g, create_graph=True)
        second = _tensor(numbers, source, dtype)
        (again,) = _torch().autograd.grad(gradient, g, second)
        forward, backward = ops.TorchInterpolate(**given), ops.TorchUpsampleBackward(**given)
        for operator, *pair in ((forward, x, y), (backward, g, gradient), (forward, second, again)):
            source_of, result = (each.detach().double().numpy() for each in pair)
            yield operator, source_of, result


def _roundings(operator: ops.Operator, x: Tensor, expected: Tensor, dtype: str) -> Tensor:
    """Return the roundings of both sides; narrow types are rounded once more.

    PyTorch's forward rounds the weights to a narrow type too, and partial sums, in some kernels.
    """
    kind = DTYPES[dtype]
    passes = lowered(operator, x.shape, expected.shape, kind).passes
    magnitudes = dense_apply({one.axis: np.abs(one.map.dense()) for one in passes}, np.abs(x))
    allowed = _ROUNDING[dtype] * magnitudes
    if kind.itemsize == 2:
        allowed = allowed + ulp(expected, kind)
        if not operator.gradient:
            allowed = allowed + 8 * ulp(np.ones(()), kind) * magnitudes
    return allowed


def _words(mode: str, given: dict[str, Any]) -> str:
    return ", ".join((mode, *(n for n in ("align_corners", "antialias") if given.get(n))))


def _add_tensors(tally: Tally) -> None:
    for mode, dtype in itertools.product(RANKS, DTYPES):
        if DTYPES[dtype].itemsize == 2 and mode in {"area", "lanczos"}:
            continue  # PyTorch adds in the narrow type, or has no kernel
        for operator, x, expected in _calls(mode, dtype):
            flags = ("align_corners", "antialias")
            words = _words(mode, {name: getattr(operator, name) for name in flags})
            result = evaluate(operator, x.astype(DTYPES[dtype]), expected.shape)
            tally.add(
                ("torch: whole tensors", operator.name, words, dtype),
                result,
                expected,
                allowed=_roundings(operator, x, expected, dtype),
            )


_NAMES = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")


def _add_samples(tally: Tally, dtype: str, rounding: float) -> None:
    """Take each operator of every sample of torch.testing; these have 2 to 5 elements an axis."""
    torch = _torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        database = importlib.import_module("torch.testing._internal.common_methods_invocations")
        samples = [
            (op, sample)
            for op in database.op_db
            if op.name == "nn.functional.interpolate"
            for sample in op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=True)
        ]
    assert len(samples) >= 150
    for op, sample in samples:
        arguments = dict(zip(_NAMES, sample.args, strict=False)) | sample.kwargs
        given: dict[str, Any] = {k: v for k, v in arguments.items() if v is not None}
        y = op(sample.input, *sample.args, **sample.kwargs)
        g = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        (gradient,) = torch.autograd.grad(y, sample.input, g)
        for operator, x, result in (
            (ops.TorchInterpolate(**given), sample.input, y),
            (ops.TorchUpsampleBackward(**given), g, gradient),
        ):
            expected = result.detach().numpy()
            ours = evaluate(operator, x.detach().numpy(), expected.shape)
            allowed = rounding * max(1.0, float(np.abs(expected).max()))
            key = ("torch: OpInfo samples", operator.name, "all of torch.testing", dtype)
            tally.add(key, ours, expected, allowed=allowed)


def _add_weights(tally: Tally, case: AxisCase, words: str) -> None:
    names = "torch_interpolate", "torch_upsample_backward"
    for operator, ours, theirs in zip(names, case.ours(), case.theirs(), strict=True):
        key = ("torch: weights", operator, words, case.dtype)
        tally.add(key, ours, theirs, allowed=case.allowed())


def _compare(tally: Tally) -> None:
    for mode in RANKS:
        rng = random.Random(mode)  # noqa: S311 - a choice of cases
        for _ in range(300):
            case = _random_case(rng, mode)
            _add_weights(tally, case, _words(mode, case.attributes))
    for mode, dtype in itertools.product(("nearest", "nearest-exact"), ("float32", "float64")):
        brief = itertools.product(range(1, 33), range(1, 65))
        for lengths in brief if tally.brief else tally.lengths():
            case = AxisCase(mode, 3, dtype, *lengths, None, {})
            _add_weights(tally, case, f"{mode}, {UP_TO_64}")
    if version("expecttest"):
        _add_samples(tally, "float32", 2.0**-19)
        _add_samples(tally, "float64", 2.0**-47)
    _add_tensors(tally)


SECTION = Section.of("PyTorch", _compare)
