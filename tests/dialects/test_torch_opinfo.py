"""PyTorch's own samples of interpolate: `torch.testing`'s operator database."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradwire import ops
from support.oracles.dialect_oracles import Tensor, evaluate

pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
pytest.importorskip("expecttest", reason="torch.testing needs it")
torch: Any = importlib.import_module("torch")

NAMES = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
# Of the largest number; the samples have 2 to 5 elements an axis.
ROUNDING = {"float32": 2.0**-19, "float64": 2.0**-47}


def samples(dtype: str) -> list[tuple[Any, Any]]:
    """Return every sample of every variant, with the operator that it is for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        database = importlib.import_module("torch.testing._internal.common_methods_invocations")
        return [
            (op, sample)
            for op in database.op_db
            if op.name == "nn.functional.interpolate"
            for sample in op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=True)
        ]


def calls(dtype: str) -> Iterator[tuple[ops.Operator, Tensor, Tensor]]:
    """Return each operator of every sample, what it is given, and what PyTorch makes of that."""
    for op, sample in samples(dtype):
        arguments = dict(zip(NAMES, sample.args, strict=False)) | sample.kwargs
        given: dict[str, Any] = {k: v for k, v in arguments.items() if v is not None}
        y = op(sample.input, *sample.args, **sample.kwargs)
        g = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        (gradient,) = torch.autograd.grad(y, sample.input, g)
        yield ops.TorchInterpolate(**given), sample.input.detach().numpy(), y.detach().numpy()
        yield ops.TorchUpsampleBackward(**given), g.numpy(), gradient.numpy()


def allowed(dtype: str, expected: Tensor) -> float:
    """Return how far results may be from PyTorch's."""
    return ROUNDING[dtype] * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize("dtype", ROUNDING)
def test_every_sample_of_pytorch_has_its_result_and_its_gradient(dtype: str) -> None:
    every = list(calls(dtype))
    assert len(every) >= 2 * 150
    for operator, source, expected in every:
        result = evaluate(operator, source, expected.shape)
        assert np.abs(result - expected).max() <= allowed(dtype, expected), operator
