"""`gradwire demo`: rebuilds a photograph from a 4x smaller copy.

The small copy y is A x, where x is the photograph and A averages 4x4 boxes. Many images have that
copy. The demo seeks the minimum of this loss, with D the differences between neighbors:

    loss(x) = 1/2 |A x - y|^2  +  SLOPE / 2 |D x|^2

The second term prefers smooth images.

A and its transpose, `torch_interpolate` and `torch_upsample_backward` of the mode "area", are calls
to the server; D is NumPy here. The minimum is approached with Nesterov's momentum in steps of
1 / L, where L bounds the loss's second derivative: |A|^2 = 1/16, for A's rows do not overlap and
each holds 16 times 1/16, and |D|^2 <= 8 (Chambolle 2004).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

import click
import numpy as np

from gradwire import Client, ops
from gradwire.cli.connection import Connection
from gradwire.cli.options import OutputFile, json_option, server_options
from gradwire.cli.output import load
from gradwire.tensors import Array, Shape

# Most lines printed of a long descent.
LINES = 12
# [batch, channel, height, width]; float32, or the type of the descent's start.
Image = Array

# Found by trial on the demo's photograph.
SLOPE = 1e-3

LIPSCHITZ = 1 / 16 + 8 * SLOPE


@click.command()
@click.option("--output", type=OutputFile(".png"), default="demo.png", help="Picture to write.")
@click.option("--iterations", type=click.IntRange(1), default=60)
@server_options()
@json_option
def demo(*, output: Path, iterations: int, server: Connection, as_json: bool) -> None:
    """Rebuild a photograph from its 4x smaller copy.

    It is found by gradient descent, whose gradients the service computes.
    """
    say = partial(click.echo, err=as_json)
    pictures = load("gradwire.cli.pictures")
    truth: Image = pictures.photograph()
    with server.client() as client:
        info = client.server_info()
        say(f"Photograph  {_size(truth)}, sample data of matplotlib: {pictures.CREDIT}")
        say(f"Server      gradwire {info.version}, backend {info.backend}")
        small = client.evaluate(shrinking(truth.shape), truth)
        enlarging = ops.Interpolate(mode="bilinear", sizes=truth.shape[2:], data_format="NCX")
        bilinear = rebuilt = client.evaluate(enlarging, small)
        say(f"Task        rebuild it from its 4x smaller copy, {_size(small)}\n")
        say("  step        loss        PSNR")
        losses: list[float] = []
        start = time.monotonic()
        steps = descend(client, small, start=bilinear)
        for step, (loss, rebuilt) in enumerate(islice(steps, iterations + 1)):
            losses.append(loss)
            if step % max(1, iterations // LINES) == 0 or step == iterations:
                say(f"{step:6}  {loss:10.4f}  {psnr_db(rebuilt, truth):7.2f} dB")
        seconds = time.monotonic() - start
    calls = 2 * iterations + 1
    say(f"\n{calls} calls in {seconds:.1f} s, gradients and forwards alike")
    before, after = (psnr_db(image, truth) for image in (bilinear, rebuilt))
    say(
        f"Bilinear enlargement {before:.2f} dB, reconstruction {after:.2f} dB: "
        f"{after - before:+.2f} dB"
    )
    images = {
        f"given: {_size(small)}": small,
        f"bilinear enlargement, {before:.2f} dB": bilinear,
        f"reconstruction, {after:.2f} dB": rebuilt,
        f"the photograph: {_size(truth)}": truth,
    }
    pictures.draw_demo(images, path=output)
    say(f"Wrote {output}")
    if as_json:
        facts = {
            "version": info.version,
            "backend": info.backend,
            "iterations": iterations,
            "calls": calls,
            "seconds": round(seconds, 3),
            "losses": losses,
            "bilinear_db": before,
            "reconstruction_db": after,
            "output": str(output),
        }
        click.echo(json.dumps(facts))


def _size(image: Image) -> str:
    return f"{image.shape[3]} x {image.shape[2]}"


def shrinking(shape: Shape) -> ops.TorchInterpolate:
    """Return A for images of a shape: batch, channel, height, width."""
    return ops.TorchInterpolate(mode="area", size=[length // 4 for length in shape[2:]])


def descend(client: Client, small: Image, *, start: Image) -> Iterator[tuple[float, Image]]:
    """Yield the loss and image of the start and of each step."""
    shrink, back = shrinking(start.shape), ops.TorchUpsampleBackward(mode="area")
    image = ahead = start
    for number in count():
        residual = client.evaluate(shrink, ahead) - small
        curvature = _curvature(ahead)
        yield float(np.vdot(residual, residual) + SLOPE * np.vdot(ahead, curvature)) / 2, ahead
        misfit = client.evaluate(back, residual, output_shape=start.shape)
        stepped = ahead - (misfit + SLOPE * curvature) / LIPSCHITZ
        ahead, image = stepped + number / (number + 3) * (stepped - image), stepped


def psnr_db(image: Image, truth: Image) -> float:
    """Return the peak signal-to-noise ratio of an image, in decibels.

    Values are from 0 to 1.
    """
    error = np.clip(image, 0, 1).astype(np.float64) - truth
    return -10 * math.log10(float(np.mean(error**2)))


def _curvature(image: Image) -> Image:
    """Return D^T D x: four times each element without its four neighbors.

    The neighbor of the last one is the first one.
    """
    neighbors = [np.roll(image, step, axis) for step in (1, -1) for axis in (-2, -1)]
    curvature: Image = 4 * image - np.sum(neighbors, axis=0)
    return curvature
