"""Draws the status page of a server with two workers and callers of every kind, as docs/status.png.

PYTHONPATH=tests python -m web.picture docs/status.png [--seconds N]
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from playwright.sync_api import ViewportSize

from gradwire import Client, GradwireError, ops
from support.processes import running_command
from support.raw_calls import RawClient, published_request, wrong_request
from web.chromium import browsing

FLAGS = ("--workers", "2", "--max-streams", "32", "--http-port", "0")
SMALL = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
MEDIUM = ops.TorchUpsampleBackward(mode="bicubic", align_corners=False)
LARGE = ops.DmlResampleGrad(interpolation_mode="linear")


class Callers:
    """Calls of every kind, now more and now fewer, until they are stopped."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._over = threading.Event()
        self._began = time.monotonic()
        self._threads = [
            threading.Thread(target=self._again, args=(call, pause_s))
            for call, pause_s in (
                (partial(self._one, SMALL, 32), 0.01),
                (partial(self._one, MEDIUM, 64), 0.03),
                (partial(self._one, LARGE, 1024), 0.2),
                (self._many, 0.1),
                (self._wrong, 3.0),
            )
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop them and wait for the last calls."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _again(self, call: Callable[[Client], None], pause_s: float) -> None:
        while not self._over.is_set():
            # A new client now and then, so that both workers have something to do.
            with Client(self._address) as client:
                for _ in range(20):
                    try:
                        call(client)
                    except GradwireError as error:
                        sys.stderr.write(f"{error}\n")
                    tide = 1.2 + np.sin((time.monotonic() - self._began) / 12)
                    if self._over.wait(pause_s * tide * random.random()):  # noqa: S311 - a load
                        return

    def _one(self, operator: ops.Operator, size: int, client: Client) -> None:
        gradient = np.ones((1, 3, size, size), np.float32)
        client.evaluate(operator, gradient, output_shape=(1, 3, size // 2, size // 2))

    def _many(self, client: Client) -> None:
        item = SMALL, np.ones((1, 3, 8, 8), np.float32), (1, 3, 4, 4)
        deque(client.evaluate_many([item] * 30), maxlen=0)

    def _wrong(self, _client: Client) -> None:
        wrong, half = wrong_request(), published_request()
        wrong.request_id = "nightly-12"
        half.request_id, half.data = "notebook-7", half.data[:4]
        with RawClient(self._address) as raw:
            raw.evaluate(wrong)
            raw.evaluate(half)


def main() -> None:
    """Draw it."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        running_command(*FLAGS, log=Path(name) / "log", env={}) as command,
        browsing() as browser,
    ):
        callers = Callers(command.address)
        try:
            time.sleep(given.seconds)
            page = browser.new_page(viewport=ViewportSize(width=1200, height=900))
            page.goto(f"http://{command.http_address}/")
            page.screenshot(path=given.file, full_page=True)
        finally:
            callers.stop()


if __name__ == "__main__":
    main()
