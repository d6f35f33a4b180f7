"""Whole tensors and PyTorch's own samples against the installed PyTorch, and what it refuses."""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradwire import ops
from gradwire.errors import InvalidRequestError
from gradwire_server.errors import InvalidFieldError
from support.oracles.dialect_oracles import DTYPES, Tensor, evaluate, lowered, ulp
from support.oracles.torch_axes import RANKS, WITH_ANTIALIAS, WITH_CORNERS

pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
torch: Any = importlib.import_module("torch")
interpolate = torch.nn.functional.interpolate

# Of the sum of all terms' magnitudes: roundings of products, sums and, for area, quotients.
ROUNDING = {"float16": 2.0**-20, "bfloat16": 2.0**-20, "float32": 2.0**-20, "float64": 2.0**-49}


def arguments(rng: random.Random, mode: str, source: tuple[int, ...]) -> dict[str, Any]:
    chosen: dict[str, Any] = {"mode": mode}
    if mode in WITH_CORNERS:
        chosen["align_corners"] = rng.random() < 0.5
    if mode == "lanczos" or (mode in WITH_ANTIALIAS and rng.random() < 0.4):
        chosen["antialias"] = True
    if rng.random() < 0.4:
        # Two or more: see the test of a width of 1.
        return chosen | {"size": tuple(rng.randint(2, 17) for _ in source[2:])}
    scales = tuple(rng.uniform(2 / size, 3) if size > 1 else 2.5 for size in source[2:])
    return chosen | {"scale_factor": scales, "recompute_scale_factor": rng.random() < 0.5}


def tensor(array: Tensor, dtype: str) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array, np.float64)).to(getattr(torch, dtype))


def differences(operator: ops.Operator, given: Any, expected: Any) -> tuple[Tensor, Tensor]:
    """Return how far our result is from PyTorch's, and the roundings of both sides.

    Narrow types are rounded once more.

    PyTorch's forward rounds the weights to a narrow type too, and partial sums, in some kernels.
    """
    name = str(given.dtype).removeprefix("torch.")
    dtype = DTYPES[name]
    x, wide = (each.detach().double().numpy() for each in (given, expected))
    plan = lowered(operator, x.shape, wide.shape, dtype)
    magnitudes = np.abs(x)
    for one in plan.passes:
        matrix = np.abs(one.map.dense())
        magnitudes = np.moveaxis(np.tensordot(matrix, magnitudes, (1, one.axis)), 0, one.axis)
    allowed = ROUNDING[name] * magnitudes
    if dtype.itemsize == 2:
        allowed = allowed + ulp(wide, dtype)
        if not operator.gradient:
            allowed = allowed + 8 * ulp(np.ones(()), dtype) * magnitudes
    result = evaluate(operator, x.astype(dtype), wide.shape).astype(np.float64)
    return np.abs(result - wide), allowed


def calls(mode: str, dtype: str) -> Iterator[tuple[ops.Operator, Any, Any]]:
    rng = random.Random(f"{mode} {dtype}")  # noqa: S311 - a choice of cases
    for _ in range(40):
        source = tuple(rng.randint(1, 3) for _ in range(2))
        source += tuple(rng.randint(2, 14) for _ in range(rng.choice(RANKS[mode]) - 2))
        given = arguments(rng, mode, source)
        if DTYPES[dtype].itemsize == 2 and given.get("antialias"):
            continue
        numbers = np.random.default_rng(rng.randrange(2**32))
        x = tensor(numbers.standard_normal(source), dtype).requires_grad_()
        y = interpolate(x, **given)
        g = tensor(numbers.standard_normal(tuple(map(int, y.shape))), dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(y, x, g, create_graph=True)
        second = tensor(numbers.standard_normal(source), dtype)
        (again,) = torch.autograd.grad(gradient, g, second)

        forward, backward = ops.TorchInterpolate(**given), ops.TorchUpsampleBackward(**given)
        yield forward, x, y
        yield backward, g, gradient
        yield forward, second, again


def compared(mode: str, dtype: str) -> bool:
    return DTYPES[dtype].itemsize > 2 or mode not in {"area", "lanczos"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", RANKS)
def test_forward_gradient_and_second_gradient_are_pytorchs_up_to_rounding(
    mode: str, dtype: str
) -> None:
    if not compared(mode, dtype):
        pytest.skip("PyTorch adds in the narrow type, or has no kernel")
    for operator, given, expected in calls(mode, dtype):
        difference, allowed = differences(operator, given, expected)
        assert np.all(difference <= allowed), operator


NAMES = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
# Of the largest number; the samples have 2 to 5 elements an axis.
SAMPLE_ROUNDING = {"float32": 2.0**-19, "float64": 2.0**-47}


def samples(dtype: str) -> list[tuple[Any, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        database = importlib.import_module("torch.testing._internal.common_methods_invocations")
        return [
            (op, sample)
            for op in database.op_db
            if op.name == "nn.functional.interpolate"
            for sample in op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=True)
        ]


def sample_calls(dtype: str) -> Iterator[tuple[ops.Operator, Tensor, Tensor]]:
    """Return each operator of every sample, what it is given, and what PyTorch makes of that."""
    for op, sample in samples(dtype):
        arguments = dict(zip(NAMES, sample.args, strict=False)) | sample.kwargs
        given: dict[str, Any] = {k: v for k, v in arguments.items() if v is not None}
        y = op(sample.input, *sample.args, **sample.kwargs)
        g = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        (gradient,) = torch.autograd.grad(y, sample.input, g)
        yield ops.TorchInterpolate(**given), sample.input.detach().numpy(), y.detach().numpy()
        yield ops.TorchUpsampleBackward(**given), g.numpy(), gradient.numpy()


def sample_allowed(dtype: str, expected: Tensor) -> float:
    return SAMPLE_ROUNDING[dtype] * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize("dtype", SAMPLE_ROUNDING)
def test_every_sample_of_pytorch_has_its_result_and_its_gradient(dtype: str) -> None:
    pytest.importorskip("expecttest", reason="torch.testing needs it")
    every = list(sample_calls(dtype))
    assert len(every) >= 2 * 150
    for operator, source, expected in every:
        result = evaluate(operator, source, expected.shape)
        assert np.abs(result - expected).max() <= sample_allowed(dtype, expected), operator


REFUSED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 4), {}),
    ((1, 1, 4), {"size": 2, "scale_factor": 2.0}),
    ((1, 1, 4), {"size": 2, "recompute_scale_factor": True}),
    ((1, 1, 4), {"size": (2, 2)}),
    ((1, 1, 4, 4), {"scale_factor": (2.0, 2.0, 2.0)}),
    ((1, 1, 4), {"scale_factor": 0.1}),
    ((1, 1, 4), {"size": 2, "align_corners": False}),
    ((1, 1, 4), {"size": 2, "mode": "area", "align_corners": True}),
    ((1, 1, 4), {"size": 2, "mode": "nearest-exact", "align_corners": False}),
    ((1, 1, 4), {"size": 2, "mode": "bilinear"}),
    ((1, 1, 4, 4), {"size": 2, "mode": "linear"}),
    ((1, 1, 4, 4, 4), {"size": 2, "mode": "bicubic"}),
    ((1, 1, 4, 4), {"size": 2, "mode": "trilinear"}),
    ((1, 1, 4), {"size": 2, "mode": "linear", "antialias": True}),
    ((1, 1, 4, 4), {"size": 2, "mode": "nearest", "antialias": True}),
    ((1, 1, 4, 4), {"size": 2, "mode": "lanczos"}),
    ((1, 1, 4, 4), {"size": 2, "mode": "lanczos", "antialias": True, "align_corners": True}),
    ((1, 1, 4, 4), {"size": 2, "mode": "cubic"}),
]


@pytest.mark.parametrize(("shape", "given"), REFUSED, ids=str)
def test_what_pytorch_refuses_is_refused(shape: tuple[int, ...], given: dict[str, Any]) -> None:
    with pytest.raises((ValueError, NotImplementedError, RuntimeError)):
        interpolate(torch.zeros(shape), **given)
    result = (1, 1, *(2 for _ in shape[2:]))
    with pytest.raises((InvalidRequestError, InvalidFieldError)):
        evaluate(ops.TorchInterpolate(**given), np.zeros(shape, np.float32), result)
