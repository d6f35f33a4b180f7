"""Draws the status page of a server with two workers and callers of every kind, as docs/status.png.

PYTHONPATH=tests python -m web.picture docs/status.png
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from support.load import Callers
from support.processes import running_command
from support.raw_calls import RawClient, published_request, wrong_request

# Chromium's sandbox needs what containers and root lack; it opens only our own pages.
_CHROMIUM = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]
FLAGS = ("--workers", "2", "--max-streams", "32", "--http-port", "0")


@contextmanager
def browsing() -> Generator[Browser]:
    """Run the system's Chromium, headless; skip the test if it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_CHROMIUM)
        try:
            yield browser
        finally:
            browser.close()


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
    with (
        tempfile.TemporaryDirectory() as name,
        running_command(*FLAGS, log=Path(name) / "log", env={}) as command,
        browsing() as browser,
        Callers(command.address, "unary", "many", "stream"),
    ):
        spoil(command.address)
        page = browser.new_page(viewport=ViewportSize(width=1200, height=900))
        page.goto(f"http://{command.http_address}/")
        time.sleep(20)
        page.screenshot(path=sys.argv[1], full_page=True)


if __name__ == "__main__":
    main()
