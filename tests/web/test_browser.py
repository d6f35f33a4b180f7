"""The status page in a real browser: live figures, and text that stays text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import Page, browsing
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.config.tokens import Scope, add_token
from raw_calls import RawClient, published_request
from serving import ServerThread, serving

EVIL = "<script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">"
MARKED = "window.unchanged = document.getElementById('settings')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    browser.told.clear()
    return browser


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with serving(http_port="0", backend=NumpyCpu()) as server:
        yield server


def url_of(server: ServerThread) -> str:
    return f"http://{server.server.instruments.address}/"


def spoil(server: ServerThread, request_id: str) -> None:
    """Make a call that is refused."""
    wrong = published_request()
    wrong.request_id = request_id
    wrong.input.sizes[0] = -1
    with RawClient(server.address) as client:
        assert client.evaluate(wrong).refusal is not None


def test_figures_follow_calls_without_a_reload(page: Page, server: ServerThread) -> None:
    page.open(url_of(server))
    page.value("window.sameDocument = true")
    assert page.value("document.title") == "gradwire: serving"
    assert page.text("#operators .empty") == "Nothing has been called yet."
    page.wait_for("document.querySelectorAll('#tiles .tile').length === 6")
    with RawClient(server.address) as client:
        for _ in range(5):
            client.evaluate(published_request())
    page.wait_for("document.querySelector('#operators').innerText.includes('dml_resample_grad')")
    row = re.split(r"\s+", page.text("#operators tbody tr"))
    assert row[0] == "dml_resample_grad"
    assert row[-2:] == ["5", "0"]
    page.wait_for("document.querySelector('#tiles .tile').innerText.includes('5 so far')")
    assert page.value("window.sameDocument") is True
    assert page.told == []


def test_what_callers_wrote_stays_text(page: Page, server: ServerThread) -> None:
    spoil(server, EVIL)
    page.open(url_of(server))
    assert page.text("#errors code") == EVIL
    spoil(server, EVIL[::-1])
    spoil(server, EVIL)
    # Also in what the script puts in later.
    page.wait_for("document.querySelector('#errors').innerText.includes('3 times')")
    assert page.text("#errors code") == EVIL
    assert page.value("document.title") == "gradwire: serving"
    assert page.value("document.querySelectorAll('#errors script, #errors img').length") == 0
    assert page.told == []


def test_its_policy_stops_what_is_not_its_own(page: Page, server: ServerThread) -> None:
    page.open(url_of(server))
    page.value(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.ran = true'}))"
    )
    assert page.value("window.ran === undefined") is True
    blocked = page.value("fetch('http://localhost:1/').then(() => 'sent', () => 'blocked')")
    assert blocked == "blocked"
    assert sum("Content Security Policy" in str(entry) for entry in page.told) >= 2


def test_parts_that_have_not_changed_stay_where_they_are(page: Page, server: ServerThread) -> None:
    page.open(url_of(server))
    page.value(f"{MARKED}; window.now = document.getElementById('now').innerText")
    page.wait_for("document.getElementById('now').innerText !== window.now")
    assert page.value("document.getElementById('settings') === window.unchanged") is True


def test_a_server_that_is_gone_is_told(page: Page) -> None:
    with serving(http_port="0", backend=NumpyCpu()) as server:
        page.open(url_of(server))
        assert page.value("document.getElementById('stale').checkVisibility()") is False
    page.wait_for("document.getElementById('stale').checkVisibility()")
    assert page.text("#stale") == "No answer from the server; trying again."


def test_without_scripts_all_is_there_and_fetched_again(page: Page, server: ServerThread) -> None:
    spoil(server, "before")
    page.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(url_of(server))
        assert page.text("#errors code") == "before"
        spoil(server, "after")
        page.wait_for("document.querySelector('#errors').innerText.includes('2 times')")
    finally:
        page.ask("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "dark")])
def test_it_fits_any_window_and_scheme(
    page: Page, server: ServerThread, width: int, scheme: str
) -> None:
    spoil(server, "x" * 128)
    page.look(width=width, scheme=scheme, mobile=width == 390)
    page.open(url_of(server))
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value("innerWidth") == width
    red, green, blue = map(
        int, re.findall(r"\d+", page.value("getComputedStyle(document.body).backgroundColor"))
    )
    assert (red + green + blue < 3 * 64) == (scheme == "dark")


def test_a_browser_asks_for_a_token_and_keeps_it(page: Page, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = add_token(tokens, name="reader", scopes={Scope.INSPECT})
    with serving(http_port="0", backend=NumpyCpu(), tokens=str(tokens)) as server:
        place = server.server.instruments.address
        page.open(f"http://any:{token}@{place}/")
        page.value("window.now = document.getElementById('now').innerText")
        # The page itself is fetched again with the same token.
        page.wait_for("document.getElementById('now').innerText !== window.now")
        assert page.value("document.getElementById('stale').hidden") is True
