"""Triton models of bilinear x2 gradients, chosen by the model's name.

kernel  gradwire's compiled kernel, called in this process
torch   PyTorch's operator
noop    zeros of the right shape

Tensors go in and out by DLPack: with NumPy 2 this release's own conversion from and to NumPy
silently gives wrong inputs and empty outputs.
"""

from __future__ import annotations

import os

import torch
import triton_python_backend_utils as triton
from torch.utils.dlpack import from_dlpack, to_dlpack

from gradwire import ops
from gradwire_server import LocalClient

THREADS = len(os.sched_getaffinity(0))


def kernel():
    """Return gradwire's evaluation with a server's default threads."""
    client = LocalClient(backend="numba_cpu", threads=THREADS)
    operator = ops.TorchUpsampleBackward(mode="bilinear")

    def evaluate(gradient, shape):
        result = client.evaluate(operator, gradient.numpy(), output_shape=shape)
        return torch.from_numpy(result)

    return evaluate


def pytorch():
    """Return PyTorch's evaluation."""
    backward = torch.ops.aten.upsample_bilinear2d_backward
    return lambda gradient, shape: backward(gradient, gradient.shape[2:], shape, False, None, None)  # noqa: FBT003 - PyTorch's signature


def noop():
    """Return a function that makes each shape's result once."""
    results = {}

    def evaluate(_gradient, shape):
        if shape not in results:
            results[shape] = torch.zeros(shape)
        return results[shape]

    return evaluate


MODELS = {"kernel": kernel, "torch": pytorch, "noop": noop}


class TritonPythonModel:
    """A model in the form of Triton's Python backend."""

    def initialize(self, arguments):
        """Prepare the evaluation that the model is named after."""
        torch.set_num_threads(THREADS)
        torch.set_grad_enabled(False)
        self._evaluate = MODELS[arguments["model_name"]]()

    def execute(self, requests):
        """Answer requests in their order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        gradient = from_dlpack(triton.get_input_tensor_by_name(request, "GRADIENT").to_dlpack())
        images, channels, height, width = gradient.shape
        result = self._evaluate(gradient, (images, channels, height // 2, width // 2))
        tensor = triton.Tensor.from_dlpack("RESULT", to_dlpack(result))
        return triton.InferenceResponse([tensor])
