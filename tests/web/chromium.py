"""The system's Chromium, headless, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

# Chromium's sandbox needs what containers and root lack; it opens only our own pages.
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]


@contextmanager
def browsing() -> Generator[Browser]:
    """Run a browser; skip the test if Chromium is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()
