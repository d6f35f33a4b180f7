"""`gradwire demo`: the reconstruction, told line by line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from gradwire import demo
from gradwire.cli.connection import Connection
from gradwire.cli.exits import CommandError

try:
    from gradwire import demo_picture
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise CommandError('the demo draws with matplotlib: pip install "gradwire[plot]"') from None

# Lines printed of a long descent.
LINES = 12


def run(output: Path, connection: Connection, *, iterations: int) -> None:
    """Rebuild the photograph, print the falling loss, and write the picture."""
    truth = demo_picture.photograph()
    click.echo(f"Photograph  {_size(truth)}, sample data of matplotlib: {demo_picture.CREDIT}")
    with connection.client() as client:
        info = client.server_info()
        click.echo(f"Server      gradwire {info.version}, backend {info.backend}")
        shrinking = demo.Shrinking(client, truth.shape)
        small = shrinking.apply(truth)
        enlarged = demo.enlarged(client, small)
        click.echo(f"Task        rebuild it from its 4x smaller copy, {_size(small)}\n")
        steps = demo.descend(shrinking, small, start=enlarged)
        losses, rebuilt = _follow(steps, truth, iterations)
    before, after = (demo.psnr_db(image, truth) for image in (enlarged, rebuilt))
    gain = f"{after - before:+.2f} dB"
    click.echo(f"Bilinear enlargement {before:.2f} dB, reconstruction {after:.2f} dB: {gain}")
    panels = (
        demo_picture.Panel(f"given: {_size(small)}", small),
        demo_picture.Panel(f"bilinear enlargement, {before:.2f} dB", enlarged),
        demo_picture.Panel(f"reconstruction, {after:.2f} dB", rebuilt),
        demo_picture.Panel(f"the photograph: {_size(truth)}", truth),
    )
    demo_picture.draw(panels, losses, path=output)
    click.echo(f"Wrote {output}")


def _follow(
    steps: Iterator[demo.DemoStep], truth: demo.Image, iterations: int
) -> tuple[list[float], demo.Image]:
    """Take the first `iterations` steps; return the losses on the way and the last image."""
    click.echo("  step        loss      misfit        PSNR")
    every = max(1, iterations // LINES)
    losses: list[float] = []
    image, start = truth, time.monotonic()
    for step in islice(steps, iterations + 1):
        losses.append(step.loss)
        image = step.image
        if step.number % every == 0 or step.number == iterations:
            decibels = demo.psnr_db(image, truth)
            click.echo(
                f"{step.number:6}  {step.loss:10.4f}  {step.misfit:10.4f}  {decibels:7.2f} dB"
            )
    calls = 4 * iterations + 2
    click.echo(f"\n{calls} calls in {time.monotonic() - start:.1f} s, gradients and forwards alike")
    return losses, image


def _size(image: demo.Image) -> str:
    return f"{image.shape[3]} x {image.shape[2]}"
