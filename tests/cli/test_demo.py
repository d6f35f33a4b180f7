"""`gradwire demo`, and the mathematics behind it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from support.command_line import run_here

STEP = re.compile(r"^ *(\d+) +([\d.]+) +([\d.]+) dB$", re.MULTILINE)


def test_the_loss_falls_and_a_picture_is_written(tmp_path: Path, target: str) -> None:
    path = tmp_path / "demo.png"
    done = run_here("demo", "--iterations", 8, "--output", path)
    assert (done.code, done.stderr) == (0, "")
    steps = [(int(step), float(loss)) for step, loss, *_ in STEP.findall(done.stdout)]
    losses = [loss for _, loss in steps]
    assert [step for step, _ in steps] == list(range(9))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "public domain" in done.stdout
    other = tmp_path / "other.png"
    done = run_here("demo", "--iterations", 1, "--output", other, "--target", target)
    assert (done.code, other.is_file()) == (0, True)
    found = [float(loss) for _, loss, *_ in STEP.findall(done.stdout)]
    np.testing.assert_allclose(found, losses[:2], rtol=1e-3)
    bilinear, reconstruction = re.findall(r"([\d.]+) dB[,:]", done.stdout)
    assert float(reconstruction) > float(bilinear)
