"""A real Chromium for the tests of the page."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from scripted_page import CHROMIUM_FLAGS, WIDE, serve, standing_still

_SERVER_GONE = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
# with requests that it had not read, or in the middle of an answer
_SERVER_KILLED = ("ERR_CONNECTION_RESET", "ERR_CONTENT_LENGTH_MISMATCH")
_BROWSER_MS = 120_000  # a renderer runs at a low priority: 30 s are too few at load 30


@pytest.fixture(scope="module")
def browser(chromium_binary):
    playwright_api = pytest.importorskip(
        "playwright.sync_api", reason="no playwright; pip install playwright", exc_type=ImportError
    )
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_binary, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def module_page(browser):
    """A page on an agent without a run, to call the page's own modules in."""
    source = standing_still()
    source.run_names = ()
    with serve(source) as server:
        page = browser.new_page()
        page.goto(server.url)
        yield page
        page.close()


def is_listening(url: str) -> bool:
    """Whether the server of this address still accepts connections."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port or 80), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture
def open_page(browser) -> Iterator:
    """``open_page(url)``; afterwards no page may have logged an error or asked a stranger."""
    contexts, complaints = [], []

    def complain(message):
        # a test's server is gone before its page: the last poll or stream may find it so
        if any(result in message.text for result in _SERVER_GONE):
            return
        was_killed = any(result in message.text for result in _SERVER_KILLED)
        if was_killed and not is_listening(message.location["url"]):
            return
        complaints.append(f"{message.type}: {message.text}")

    def open_page(url, size=WIDE, scheme="dark", *, allows_errors=False):
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_BROWSER_MS)
        page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        if not allows_errors:
            page.on("console", complain)
        own = (url.partition("/?")[0], "data:")
        page.on("request", lambda r: r.url.startswith(own) or complaints.append(r.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
