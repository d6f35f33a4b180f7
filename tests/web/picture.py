"""Draws the status page of a server with two workers and callers of every kind, as docs/status.png.

PYTHONPATH=tests python -m web.picture docs/status.png [--seconds N]
"""

from __future__ import annotations

import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

from playwright.sync_api import ViewportSize

from support.load import Callers
from support.processes import running_command
from support.raw_calls import RawClient, published_request, wrong_request
from web.chromium import browsing

FLAGS = ("--workers", "2", "--max-streams", "32", "--http-port", "0")


def spoil(address: str) -> None:
    """Make calls that are refused."""
    wrong, half = wrong_request(), published_request()
    wrong.request_id = "nightly-12"
    half.request_id, half.data = "notebook-7", half.data[:4]
    with RawClient(address) as client:
        for request in (wrong, wrong, half):
            client.evaluate(request)


def main() -> None:
    """Draw it."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        running_command(*FLAGS, log=Path(name) / "log", env={}) as command,
        browsing() as browser,
        Callers(command.address, "unary", "many", "stream"),
    ):
        spoil(command.address)
        page = browser.new_page(viewport=ViewportSize(width=1200, height=900))
        page.goto(f"http://{command.http_address}/")
        time.sleep(given.seconds)
        page.screenshot(path=given.file, full_page=True)


if __name__ == "__main__":
    main()
