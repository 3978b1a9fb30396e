"""What tests of the page share: a server for a scripted run, and words to look with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from live_processes import until
from scripted_source import ScriptedSource

from dfx_agent.hub.access import Access
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE = (1440, 900)
# everything on the page that is shown in the colour of what was judged clear
GREEN = """() => {
  const probe = document.createElement("i");
  probe.style.color = "var(--good)";
  document.body.append(probe);
  const good = getComputedStyle(probe).color;
  probe.remove();
  const green = (node) => node.checkVisibility() && ["color", "backgroundColor", "borderLeftColor"]
    .some((part) => getComputedStyle(node)[part] === good);
  return [...document.querySelectorAll("body *")].filter(green).map((node) => node.outerHTML);
}"""


@contextmanager
def serve(source: ScriptedSource, port: int = 0, token: str | None = None) -> Iterator[Server]:
    app = create_app(
        source, lambda accept: (b"# EOF\n", "text/plain"), Access(token) if token else None
    )
    server = Server(app, Listener("127.0.0.1", port))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def standing_still() -> ScriptedSource:
    """A source that is in its rollout for ever: one snapshot, never another."""
    now = time.time()
    return ScriptedSource(clock=lambda: now)


def poll(page, expression: str, arg: object = None) -> None:
    """Until ``expression`` is true; ``wait_for_function`` evals in the page: its CSP forbids it."""
    until(lambda: page.evaluate(expression, arg), expression)


def wait_for_charts(page, num_charts: int = 4) -> None:
    drawn = "n => document.querySelectorAll('.plot .main-svg .scatterlayer').length >= n"
    poll(page, drawn, num_charts)
    poll(page, "document.getElementById('timeline').height > 100")


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def overflow_px(page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")
