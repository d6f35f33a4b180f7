"""`gradwire demo`: rebuilds a photograph from a 4x smaller copy.

The small copy y is A x, where x is the photograph and A averages 4x4 boxes. Many images have that
copy. The demo seeks the minimum of this loss, with D the differences between neighbors:

    loss(x) = 1/2 |A x - y|^2  +  SLOPE * sum h(|D x|)  +  BEND * sum h(|D D x|)

h is Huber's function, quadratic below WIDTH and linear above it, so that edges stay sharp; the
norms take all directions and colors of a pixel together. The second term alone is total variation
(Rudin, Osher and Fatemi 1992), whose flat patches the third one bends (after Chambolle and Lions
1997).

A and its transpose, `torch_interpolate` and `torch_upsample_backward` of the mode "area", are calls
to the server; D is NumPy here. The minimum is approached with Nesterov's momentum, dropped whenever
it points uphill (O'Donoghue and Candes 2015), in steps of 1 / L, where L bounds the loss's second
derivative: |A|^2 = 1/16, for A's rows do not overlap and each holds 16 times 1/16, and |D|^2 <= 8
(Chambolle 2004).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import numpy.typing as npt

from gradwire import Client, ops
from gradwire.cli.connection import Connection
from gradwire.cli.options import OutputFile, json_option, server_options
from gradwire.cli.output import load_pictures

# Most lines printed of a long descent.
LINES = 12


@click.command(short_help="Rebuild a photograph through the service.")
@click.option(
    "--output",
    type=OutputFile(),
    default="demo.png",
    help="Picture to write.",
)
@click.option("--iterations", type=click.IntRange(min=1), default=60)
@server_options()
@json_option
def demo(*, output: Path, iterations: int, server: Connection, as_json: bool) -> None:
    """Rebuild a photograph from its 4x smaller copy.

    It is found by gradient descent, whose gradients the service computes.
    """
    say = partial(click.echo, err=as_json)
    pictures = load_pictures()
    truth: Image = pictures.photograph()
    say(f"Photograph  {_size(truth)}, sample data of matplotlib: {pictures.CREDIT}")
    with server.client() as client:
        info = client.server_info()
        say(f"Server      gradwire {info.version}, backend {info.backend}")
        shrinking = Shrinking(client, truth.shape)
        small = shrinking.apply(truth)
        bilinear = enlarged(client, small)
        say(f"Task        rebuild it from its 4x smaller copy, {_size(small)}\n")
        say("  step        loss      misfit        PSNR")
        losses: list[float] = []
        rebuilt, start = bilinear, time.monotonic()
        for step in islice(descend(shrinking, small, start=bilinear), iterations + 1):
            losses.append(step.loss)
            rebuilt = step.image
            if step.number % max(1, iterations // LINES) == 0 or step.number == iterations:
                decibels = psnr_db(rebuilt, truth)
                figures = f"{step.loss:10.4f}  {step.misfit:10.4f}  {decibels:7.2f}"
                say(f"{step.number:6}  {figures} dB")
        seconds = time.monotonic() - start
    calls = 2 * iterations + 1
    say(f"\n{calls} calls in {seconds:.1f} s, gradients and forwards alike")
    before, after = (psnr_db(image, truth) for image in (bilinear, rebuilt))
    gain = f"{after - before:+.2f} dB"
    say(f"Bilinear enlargement {before:.2f} dB, reconstruction {after:.2f} dB: {gain}")
    images = {
        f"given: {_size(small)}": small,
        f"bilinear enlargement, {before:.2f} dB": bilinear,
        f"reconstruction, {after:.2f} dB": rebuilt,
        f"the photograph: {_size(truth)}": truth,
    }
    pictures.draw_demo(images, losses, path=output)
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


# [batch, channel, height, width]; float32, or the type of the descent's start.
Image = npt.NDArray[np.floating[Any]]

# Found by trial on the demo's photograph.
SLOPE: Final = 1e-3
BEND: Final = 3e-4
WIDTH: Final = 0.05

LIPSCHITZ: Final = 1 / 16 + 8 * SLOPE / WIDTH + 64 * BEND / WIDTH


@dataclass(frozen=True, slots=True)
class DemoStep:
    """State of the descent after a step.

    number  gradient steps taken so far
    loss    the whole loss at image
    misfit  its first part, 1/2 |A x - y|^2
    image   [1, 3, height, width], 0 to 1
    """

    number: int
    loss: float
    misfit: float
    image: Image


@dataclass(frozen=True, slots=True)
class Shrinking:
    """A and its transpose, evaluated by a server.

    shape  of the images: batch, channel, height, width; the last two are multiples of 4
    """

    client: Client
    shape: tuple[int, int, int, int]

    def apply(self, image: Image) -> Image:
        """Return A x."""
        sizes = (self.shape[2] // 4, self.shape[3] // 4)
        return self.client.evaluate(ops.TorchInterpolate(mode="area", size=sizes), image)

    def transposed(self, gradient: Image) -> Image:
        """Return A^T g.

        It takes the gradient with respect to A x to that with respect to x.
        """
        back = ops.TorchUpsampleBackward(mode="area")
        return self.client.evaluate(back, gradient, output_shape=self.shape)


def enlarged(client: Client, small: Image) -> Image:
    """Return the bilinear enlargement of an image, four times as large."""
    sizes = tuple(4 * size for size in small.shape[2:])
    enlarging = ops.Interpolate(mode="bilinear", sizes=sizes, data_format="NCX")
    return client.evaluate(enlarging, small)


def descend(shrinking: Shrinking, small: Image, *, start: Image) -> Iterator[DemoStep]:
    """Yield the descent's steps from `start` on, without end."""
    image, ahead, momentum, number = start, start, 1.0, 0
    while True:
        residual = shrinking.apply(ahead) - small
        misfit = float(np.vdot(residual, residual)) / 2
        roughness, gradient = _prior(ahead)
        yield DemoStep(number, misfit + roughness, misfit, ahead)
        gradient += shrinking.transposed(residual)
        stepped = ahead - gradient / LIPSCHITZ
        if np.vdot(gradient, stepped - image) > 0:
            momentum = 1.0
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = stepped + ((momentum - 1) / following) * (stepped - image)
        image, momentum, number = stepped, following, number + 1


def psnr_db(image: Image, truth: Image) -> float:
    """Return the peak signal-to-noise ratio of an image, in decibels.

    Values are from 0 to 1.
    """
    error = np.clip(image, 0, 1).astype(np.float64) - truth
    return -10 * math.log10(float(np.mean(error**2)))


def _prior(image: Image) -> tuple[float, Image]:
    """Return the second and third parts of the loss, and their gradient."""
    slopes = _differences(image)
    bends = _differences(slopes)
    slope_loss, slope_gradient = _huber(slopes)
    bend_loss, bend_gradient = _huber(bends)
    loss = SLOPE * slope_loss + BEND * bend_loss
    gradient = SLOPE * slope_gradient + BEND * _differences_transposed(bend_gradient)
    return loss, _differences_transposed(gradient)


def _differences(field: Image) -> Image:
    """Return D x, of shape [2, ...]; 0 at the rims.

    It is the next neighbor, down and right, minus the element.
    """
    down = np.diff(field, axis=-2, append=field[..., -1:, :])
    return np.stack([down, np.diff(field, append=field[..., -1:])])


def _differences_transposed(field: Image) -> Image:
    """Return D^T f, from shape [2, ...] to [...].

    D leaves the rims 0, so f is not read there.
    """
    rims = field.dtype.type(0)
    down = np.diff(field[0, ..., :-1, :], axis=-2, prepend=rims, append=rims)
    return -(down + np.diff(field[1, ..., :-1], prepend=rims, append=rims))


def _huber(field: Image) -> tuple[float, Image]:
    """Return the sum of h(norm) over all pixels, and its gradient.

    field is [..., height, width].
    """
    parts = field.reshape(-1, *field.shape[-2:])
    norm: Image = np.sqrt(np.einsum("phw,phw->hw", parts, parts))
    loss: Image = np.where(norm < WIDTH, norm**2 / (2 * WIDTH), norm - WIDTH / 2)
    return float(np.sum(loss, dtype=np.float64)), field / np.maximum(norm, WIDTH)
