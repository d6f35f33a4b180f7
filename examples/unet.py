"""Trains a small U-Net twice with upsampling by a gradwire server; both runs give the same bits.

    gradwire-server &
    python examples/unet.py [--target HOST:PORT] [--steps 30]

It needs pip install "gradwire[cpu,torch]". The net learns to separate squares from noise. On a GPU
PyTorch's own upsampling has another gradient each time; here only PyTorch's convolutions decide.
"""

from __future__ import annotations

import argparse
import hashlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import gradwire
import gradwire.torch


class UNet(nn.Module):
    """Two levels down and up again, each with a shortcut from its way down.

    upsample  takes (B, C, H, W) to (B, C, 2 H, 2 W)
    """

    def __init__(self, upsample: Any, width: int = 8) -> None:
        super().__init__()
        self.upsample = upsample
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.Conv2d(4 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """Return a logit for each pixel."""
        first = self.enter(image).relu()
        second = self.down(first).relu()
        third = self.bottom(second).relu()
        joined = torch.cat([second, self.upsample(third)], dim=1)
        joined = torch.cat([first, self.upsample(self.up(joined).relu())], dim=1)
        return self.leave(joined)


def squares(count: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Return noisy images of squares, (B, 1, size, size), and which pixels are theirs."""
    corners = torch.randint(0, size // 2, (count, 2))
    places = torch.arange(size)
    inside = (places >= corners[..., None]) & (places < corners[..., None] + size // 3)
    mask = (inside[:, 0, :, None] & inside[:, 1, None, :]).float()[:, None]
    return mask + torch.randn_like(mask), mask


def train(client: gradwire.Client, steps: int) -> tuple[float, str]:
    """Return the last loss and a digest of the weights."""
    torch.manual_seed(0)
    up = partial(gradwire.torch.interpolate, scale_factor=2, mode="bilinear", client=client)
    net = UNet(up)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        image, mask = squares(16)
        loss = nn.functional.binary_cross_entropy_with_logits(net(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
    return loss.item(), hashlib.sha256(weights).hexdigest()


def main() -> None:
    """Train twice and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", help="address of the server")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    with gradwire.Client(arguments.target) as client:
        runs = [train(client, arguments.steps) for _ in range(2)]
    for loss, digest in runs:
        print(f"loss {loss:.4f}  weights {digest[:16]}")
    if runs[0] != runs[1]:
        raise SystemExit("the two runs differ")
    print("both runs have the same bits")


if __name__ == "__main__":
    main()
