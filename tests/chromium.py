"""A headless Chromium that tests drive, through pipes and the DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_PATIENCE_S = 30.0
# What a page logs: exceptions, console.error, and violations of its own policy.
_TOLD = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}


def path() -> str:
    """Return where Chromium is; skip the test where there is none."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return found


class Page:
    """A page of a browser that runs.

    told  what it has logged: errors and violations of its Content-Security-Policy
    """

    def __init__(self, to: int, came: int) -> None:
        self._to, self._came = os.fdopen(to, "wb", 0), os.fdopen(came, "rb", 0)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.told: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """Let go of the pipes."""
        self._to.close()
        self._came.close()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        self._number += 1
        call: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            call["sessionId"] = self._session
        self._to.write(json.dumps(call).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return dict(message["result"])

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        for goal, is_there in (("about:blank", "==="), (url, "!==")):
            assert "errorText" not in self.ask("Page.navigate", url=goal)
            self.wait_for(
                f"document.readyState === 'complete' && location.href {is_there} 'about:blank'"
            )

    def value(self, expression: str) -> Any:
        """Return what JavaScript has for an expression; a promise is awaited."""
        answer = self._evaluate(expression)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text that is seen of an element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true; meanwhile it may fail, as between two pages."""
        until = time.monotonic() + _PATIENCE_S
        while self._evaluate(expression)["result"].get("value") is not True:
            assert time.monotonic() < until, f"it never came true: {expression}"
            time.sleep(0.05)

    def look(self, *, width: int, scheme: str, mobile: bool = False) -> None:
        """Be a window of this width whose user likes a light or a dark scheme."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
        self.ask("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path) -> None:
        """Write all of the page as PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _evaluate(self, expression: str) -> dict[str, Any]:
        options = {"returnByValue": True, "awaitPromise": True}
        return self.ask("Runtime.evaluate", expression=expression, **options)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            came = self._came.read(1 << 16)
            assert came, "Chromium has ended"
            self._rest += came
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") in _TOLD:
            self.told.append(message["params"])
        return message


@contextmanager
def browsing(folder: Path) -> Generator[Page]:
    """Run a browser whose files are in a folder."""
    theirs, to = os.pipe()
    came, their_answer = os.pipe()
    process = _start(folder, theirs, their_answer)
    for each in (theirs, their_answer):
        os.close(each)
    try:
        with contextlib.closing(Page(to, came)) as page:
            yield page
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE_S)


def _start(folder: Path, asked: int, answered: int) -> subprocess.Popen[bytes]:
    # It reads and writes at 3 and 4.
    shell = ("bash", "-c", f'exec "$0" "$@" 3<&{asked} 4>&{answered}')
    flags = (
        "--headless",
        # Its sandbox needs what containers and root lack; it sees nothing but our own page.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
        "--remote-debugging-pipe",
    )
    with (folder / "chromium.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - whichever is installed
            [*shell, path(), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(asked, answered),
        )
