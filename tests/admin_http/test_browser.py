"""The status page in a real browser: live figures, and text that stays text."""

import re

import pytest

pytest.importorskip("playwright", reason="Playwright is not installed: pip install playwright")

from playwright.sync_api import expect

from admin_http.picture import browsing
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.config.tokens import Scope, add_token
from support.raw_calls import RawClient, published_request, wrong_request
from support.servers import serving

EVIL = "<script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">"


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture
def page(browser):
    with browser.new_page() as page:
        yield page


@pytest.fixture
def console(page):
    """Exceptions, lines of the console, and violations of the page's policy."""
    lines = []
    page.on("console", lambda message: lines.append(message.text))
    page.on("pageerror", lambda error: lines.append(str(error)))
    return lines


@pytest.fixture
def server():
    with serving(http_port="0", backend=NumpyCpu()) as server:
        yield server


def refuse(server, *request_ids):
    wrong = wrong_request()
    with RawClient(server.address) as client:
        for wrong.request_id in request_ids:
            assert client.evaluate(wrong).refusal is not None


def test_figures_follow_calls_without_a_reload_until_the_server_is_gone(page, console):
    with serving(http_port="0", backend=NumpyCpu()) as server:
        page.goto(f"http://{server.http_address}/")
        page.evaluate("window.settings = document.getElementById('settings')")
        assert page.evaluate("document.title") == "gradwire: serving"
        assert page.inner_text("#operators .empty") == "Nothing has been called yet."
        page.wait_for_function("() => document.querySelectorAll('#tiles .tile').length === 6")
        with RawClient(server.address) as client:
            for _ in range(5):
                client.evaluate(published_request())
        page.wait_for_function(
            "() => /dml_resample_grad.*\\s5\\s+0\\b/s.test("
            "document.querySelector('#operators').innerText)"
        )
        row = re.split(r"\s+", page.inner_text("#operators tbody tr"))
        assert row[0] == "dml_resample_grad"
        assert row[-2:] == ["5", "0"]
        page.wait_for_function(
            "() => document.querySelector('#tiles .tile').innerText.includes('/s')"
        )
        # What has not changed is not put in anew.
        assert page.evaluate("document.getElementById('settings') === window.settings") is True
        assert page.evaluate("document.getElementById('stale').checkVisibility()") is False
        assert console == []
    page.wait_for_function("() => document.getElementById('stale').checkVisibility()")
    assert page.inner_text("#stale") == "No answer from the server; trying again."


def test_what_callers_wrote_stays_text(page, console, server):
    refuse(server, EVIL)
    page.goto(f"http://{server.http_address}/")
    assert page.inner_text("#errors code") == EVIL
    refuse(server, EVIL[::-1], EVIL)
    # Also in what the script puts in later.
    page.wait_for_function("() => document.querySelector('#errors').innerText.includes('3 times')")
    assert page.inner_text("#errors code") == EVIL
    assert page.evaluate("document.title") == "gradwire: serving"
    assert page.evaluate("document.querySelectorAll('#errors script, #errors img').length") == 0
    assert console == []


def test_without_scripts_all_is_there_and_fetched_again(browser, server):
    refuse(server, "before")
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"http://{server.http_address}/")
    assert page.inner_text("#errors code") == "before"
    refuse(server, "after")
    expect(page.locator("#errors")).to_contain_text("2 times", timeout=30_000)
    page.close()


@pytest.mark.slow
def test_a_browser_asks_for_a_token_and_keeps_it(page, tmp_path):
    tokens = tmp_path / "tokens"
    token = add_token(tokens, name="reader", scopes={Scope.INSPECT})
    with serving(http_port="0", backend=NumpyCpu(), tokens=str(tokens)) as server:
        place = server.http_address
        page.goto(f"http://any:{token}@{place}/")
        page.evaluate("window.now = document.getElementById('now').innerText")
        # The page itself is fetched again with the same token.
        page.wait_for_function("() => document.getElementById('now').innerText !== window.now")
        assert page.evaluate("document.getElementById('stale').hidden") is True


def test_the_policy_of_the_page_stops_what_is_not_its_own(page, console, server):
    page.goto(f"http://{server.http_address}/")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.ran = true'}))"
    )
    assert page.evaluate("window.ran === undefined") is True
    blocked = page.evaluate("fetch('http://localhost:1/').then(() => 'sent', () => 'blocked')")
    assert blocked == "blocked"
    assert sum("Content Security Policy" in line for line in console) >= 2
