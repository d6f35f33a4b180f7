"""Runs a command while servers are called without a pause; fails if a call is lost or wrong.

    PYTHONPATH=tests python -m deployment.under_load TARGET [--ca FILE] [--large] -- COMMAND...

Small calls, evaluate_many and streams, by threads and by asyncio, each result compared to the bit.
With --large some are of 32 MiB, and one of 128 MiB must bring results before all of it is sent.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np

from gradwire import Client
from support.clients import copied
from support.load import PAUSE_S, Callers


def check_full_duplex(target: str, credentials: grpc.ChannelCredentials | None) -> None:
    """Fail unless a large stream brings the right results while it is sent."""
    array = np.random.default_rng(0).normal(size=(32, 1024, 1024)).astype(np.float32)
    seen: list[tuple[int, int]] = []
    with Client(target, credentials=credentials) as client:
        result = copied(client, array, on_progress=lambda *progress: seen.append(progress))
    np.testing.assert_array_equal(result, array)
    assert any(received and sent < array.nbytes for sent, received in seen), seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--ca", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    ca = arguments.ca.read_bytes() if arguments.ca else None
    credentials = grpc.ssl_channel_credentials(ca) if ca else None
    kinds = ["unary", "async unary", "many", "stream", "copy", "async stream"]
    if arguments.large:
        check_full_duplex(arguments.target, credentials)
        kinds += ["large", "async large"]
    with Callers(arguments.target, *kinds, pause_s=PAUSE_S, credentials=credentials) as callers:
        callers.wait_for_more()
        subprocess.run(arguments.command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ours
        callers.wait_for_more()
    seen = callers.seen
    sys.stdout.write(
        f"{' '.join(arguments.command[:2])}: {seen['calls']} calls, {seen['retried']} took more "
        f"than one try, the slowest {seen['slowest_s']:.1f} s\n"
    )
    callers.check()


if __name__ == "__main__":
    main()
