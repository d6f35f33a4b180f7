"""Draws the status page of a server with two workers and callers of every kind, as docs/status.png.

PYTHONPATH=tests python -m admin_http.picture docs/status.png
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

FLAGS = ("--workers", "2", "--max-streams", "32", "--http-port", "0")


@contextmanager
def browsing() -> Generator[Browser]:
    """Run the system's Chromium, headless; skip the test if it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    # Chromium's sandbox needs what containers and root lack; it opens only our own pages.
    args = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        try:
            yield browser
        finally:
            browser.close()


def main() -> None:
    """Draw it."""
    with (
        tempfile.TemporaryDirectory() as name,
        running_command(*FLAGS, log=Path(name) / "log") as command,
        browsing() as browser,
        Callers(command.address, "unary", "many", "stream"),
    ):
        wrong, half = wrong_request(), published_request()
        wrong.request_id, half.request_id, half.data = "nightly-12", "notebook-7", half.data[:4]
        with RawClient(command.address) as client:
            for request in (wrong, wrong, half):
                client.evaluate(request)
        page = browser.new_page(viewport=ViewportSize(width=1200, height=900))
        page.goto(f"http://{command.http_address}/")
        time.sleep(20)
        page.screenshot(path=sys.argv[1], full_page=True)


if __name__ == "__main__":
    main()
