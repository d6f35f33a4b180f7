"""Resampling in PyTorch by a gradwire server.

Results are deterministic, with gradients of any order.

    import gradwire.torch

    with gradwire.Client() as client:
        y = gradwire.torch.interpolate(x, scale_factor=2, mode="bilinear", client=client)
        y.sum().backward()

Needs PyTorch (pip install "gradwire[torch]"). To PyTorch it is an operation, `gradwire::evaluate`,
which torch.compile leaves as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal

from gradwire import ops
from gradwire._core.bridges import (
    CLIENTS,
    Evaluator,
    as_text,
    check_shapes,
    from_text,
    linear,
    operator_for,
)
from gradwire.client import Client
from gradwire.errors import InvalidRequestError
from gradwire.ops.torch import Follow, Mode
from gradwire.tensors import Shape, Sizes, to_array

torch: Any = import_module("torch")
forward_ad: Any = import_module("torch.autograd.forward_ad")

Tensor = Any

# Beyond it, a 64-bit integer and a float64 no longer represent the same number.
LARGEST_LENGTH = 2**53


def evaluate(
    operator: ops.Operator,
    x: Tensor,
    output_shape: Sizes,
    *,
    adjoint: ops.Operator | None = None,
    client: Evaluator | None = None,
) -> Tensor:
    """Return the operator applied to a tensor, differentiable any number of times.

    operator      made outside the function that torch.compile compiles
    x             float32, float16, bfloat16 or float64, any strides. On the CPU its memory is read
                  in place; from other devices it is copied, for CUDA through pinned memory
    output_shape  of the result, which is on x's device and contiguous; it determines sizes that
                  attributes leave out
    adjoint       operator that takes the gradient of the result to that of x; None means
                  ops.adjoint() of the operator. The operator itself takes the gradient of that
                  gradient, without a constant that it adds
    client        evaluates; the caller keeps it as long as gradients may be asked for. None means
                  one Client() of this process

    Raises the errors of client.evaluate().
    """
    _refuse_tangents(x)
    texts = _texts(operator, adjoint)
    return _evaluate(x, *texts, [int(size) for size in output_shape], _number(client))


def interpolate(  # noqa: PLR0917 - so are their order and kinds
    input: Tensor,  # noqa: A002 - the names are those of torch.nn.functional.interpolate
    size: int | Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: Mode = "nearest",
    align_corners: bool | None = None,  # noqa: FBT001
    recompute_scale_factor: bool | None = None,  # noqa: FBT001
    antialias: bool = False,  # noqa: FBT001, FBT002
    *,
    follow: Follow = "forward_adjoint",
    forward: Literal["remote", "local"] = "remote",
    client: Evaluator | None = None,
) -> Tensor:
    """Resample as torch.nn.functional.interpolate does, with a gradient computed elsewhere.

    The arguments are PyTorch's, and:

    follow   which gradient: "forward_adjoint" is the adjoint of the forward, so that gradcheck
             and gradgradcheck hold; "backward_op" is PyTorch's own, which in some cases is not
    forward  "local" computes the result in PyTorch, and only gradients elsewhere
    client   as for evaluate()

    Raises InvalidRequestError, a ValueError, if an argument is wrong.
    """
    if forward not in {"remote", "local"}:
        raise InvalidRequestError.of("forward", f"is {forward!r}; give 'remote' or 'local'")
    _refuse_tangents(input)
    texts, sizes, factors = _interpolation(
        follow,
        size=size,
        scale_factor=scale_factor,
        mode=mode,
        align_corners=align_corners,
        recompute_scale_factor=recompute_scale_factor,
        antialias=antialias,
    )
    operation = _evaluate if forward == "remote" else _interpolate_here
    spatial = _scaled(input.shape[2:], sizes, factors)
    return operation(input, *texts, [*input.shape[:2], *spatial], _number(client))


def _texts(operator: ops.Operator, adjoint: ops.Operator | None) -> tuple[str, str]:
    return as_text(operator), as_text(ops.adjoint(operator) if adjoint is None else adjoint)


def _number(client: Evaluator | None) -> int:
    return CLIENTS.number(client, Client)


def _interpolation(
    follow: Follow, **asked: Any
) -> tuple[tuple[str, str], Shape, tuple[float, ...]]:
    """Return the interpolation and its gradient as texts.

    The operator's size and scale_factor follow.
    """
    attributes: dict[str, Any] = {
        name: () if value is None and name in {"size", "scale_factor"} else value
        for name, value in asked.items()
    }
    operator: Any = ops.TorchInterpolate(**attributes)
    if not operator.size and not operator.scale_factor:
        raise InvalidRequestError.of(operator.path("size"), "is None; give it, or scale_factor")
    gradient = ops.TorchUpsampleBackward(**attributes, follow=follow)
    return _texts(operator, gradient), operator.size, operator.scale_factor


def _scaled(source: Sizes, sizes: Shape, factors: tuple[float, ...]) -> list[int]:
    """Return the spatial sizes of the result.

    Their number is checked elsewhere.
    """
    if sizes:
        return list(sizes * len(source) if len(sizes) == 1 else sizes)
    each = factors * len(source) if len(factors) == 1 else factors
    pairs = zip(source, each, strict=False)
    return [_length(length, factor, axis) for axis, (length, factor) in enumerate(pairs)]


def _length(length: int, factor: float, axis: int) -> int:
    """Return trunc(length * factor); refuse invalid lengths outside compiled code."""
    if not torch.compiler.is_compiling() and not 1 <= length * factor <= LARGEST_LENGTH:
        raise InvalidRequestError.of(
            ops.TorchInterpolate.path(f"scale_factor[{axis}]"),
            f"is {factor!r}, which scales {length} elements to {length * factor:g}; give a number "
            f"that leaves 1 to 2**53",
        )
    return int(length * factor)


def _refuse_tangents(x: Tensor) -> None:
    """Raise NotImplementedError in forward mode, which PyTorch would differentiate as 0."""
    if not torch.compiler.is_compiling() and forward_ad.unpack_dual(x).tangent is not None:
        raise NotImplementedError(
            "gradwire.torch has no forward-mode derivatives; use torch.autograd.grad or backward()"
        )


def _run(x: Tensor, operator: str, adjoint: str, output_shape: list[int], client: int) -> Tensor:
    del adjoint
    check_shapes(from_text(operator), x.shape, output_shape)
    source = x.detach()
    on_cuda = source.device.type == "cuda"
    if on_cuda:
        pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        source = pinned.copy_(source)
    result = _allocated(output_shape, source.dtype, pin_memory=on_cuda)
    evaluator, out = CLIENTS.by_number(client), to_array(result)
    asked = operator_for(operator, tuple(output_shape))
    evaluator.evaluate(asked, source, output_shape=output_shape, out=out)
    return result.to(x.device)


def _allocated(shape: Sizes, dtype: Any, *, pin_memory: bool) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pin_memory)
    except RuntimeError as error:
        size = math.prod(shape) * dtype.itemsize
        raise InvalidRequestError.of(
            "output.sizes",
            f"is {list(shape)}, {size} bytes of {dtype}, which PyTorch cannot allocate here; give "
            f"shorter lengths",
        ) from error


def _run_here(
    x: Tensor, operator: str, adjoint: str, output_shape: list[int], client: int
) -> Tensor:
    del adjoint, output_shape, client
    asked: Any = from_text(operator)
    size, factor = asked.size or None, asked.scale_factor or None
    return torch.nn.functional.interpolate(
        x,
        size[0] if size is not None and len(size) == 1 else size,
        factor[0] if factor is not None and len(factor) == 1 else factor,
        mode=asked.mode,
        align_corners=asked.align_corners,
        recompute_scale_factor=asked.recompute_scale_factor,
        antialias=asked.antialias,
    ).contiguous()


def _shape_only(
    x: Tensor, operator: str, adjoint: str, output_shape: list[int], client: int
) -> Tensor:
    del operator, adjoint, client
    return x.new_empty(output_shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    x, *ctx.others = inputs
    ctx.input_shape = x.shape


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    operator, adjoint, _, client = ctx.others
    texts = adjoint, linear(operator)
    return _evaluate(gradient, *texts, ctx.input_shape, client), None, None, None, None


def _operation(name: str, run: Callable[..., Tensor]) -> Any:
    """Register an operation with PyTorch, with an evaluated gradient."""
    schema = "(Tensor x, str operator, str adjoint, SymInt[] output_shape, int client) -> Tensor"
    made = torch.library.custom_op(f"gradwire::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(_shape_only)
    made.register_autograd(_backward, setup_context=_keep)
    return made


_evaluate = _operation("evaluate", _run)
_interpolate_here = _operation("interpolate_here", _run_here)

# torch.compile treats these as constants and looks into none of them.
_texts = torch.compiler.assume_constant_result(_texts)
_interpolation = torch.compiler.assume_constant_result(_interpolation)
_number = torch.compiler.assume_constant_result(_number)
