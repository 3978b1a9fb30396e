"""Alerts on the page, and a backtest drawn, in a real Chromium."""

import time

from scripted_page import poll, texts
from scripted_source import RUN, ScriptedSource
from test_backtest import as_csv, steps

from dfx_agent.snapshot import AlertRow, Alerts, DeliveryRow
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server

HOSTILE = '<img src=x onerror="window.pwned=1">'


def an_alert(name: str, severity: str, *, run: str = RUN, is_inhibited: bool = False) -> AlertRow:
    return AlertRow(
        run, name, severity, {}, f"{name} is so", 0.0, 7, is_inhibited,
        (f"reward down since step 5 {HOSTILE}",), "What it means.", "Where to look.", "What to do.",
    )  # fmt: skip


class ScriptedAlerts:
    def __init__(self) -> None:
        self.firing, self.deliveries = (), ()

    def alerts(self) -> Alerts:
        return Alerts(time.time(), tuple(self.firing), tuple(self.deliveries), 1, 0)


def test_what_fires_is_listed_and_goes_when_it_ends(open_page):
    source, alerts = ScriptedSource(), ScriptedAlerts()
    app = create_app(source, lambda _: (b"", "text/plain"), None, alerts)
    server = Server(app, Listener("127.0.0.1", 0))
    server.start()
    try:
        page = open_page(server.url)
        page.wait_for_selector("#verdict-list strong")
        assert page.is_hidden("#alerts")
        alerts.firing = [
            an_alert("DfxA", "critical"),
            an_alert("DfxB", "warning", is_inhibited=True),
            an_alert("DfxC", "critical", run="another"),
        ]
        alerts.deliveries = [
            DeliveryRow("webhook", "host:1", False, 0, 3, 0, 1, "refused"),  # noqa: FBT003
            DeliveryRow("webhook", "host:2", True, 3, 0, 0, 0, ""),  # noqa: FBT003
        ]
        page.wait_for_selector("#alert-list strong")
        assert texts(page, "#alert-list strong") == [
            "DfxA (critical)", "Alerts do not reach webhook host:1",
        ]  # fmt: skip
        page.click("#alert-list .toggle >> nth=0")
        assert texts(page, "#alert-list .evidence p") == [
            f"reward down since step 5 {HOSTILE}", "What it means.", "Where to look.",
            "What to do.",
        ]  # fmt: skip
        assert page.evaluate("window.pwned") is None
        alerts.firing, alerts.deliveries = (), ()
        page.wait_for_selector("#alerts", state="hidden")
    finally:
        server.stop()


def test_a_backtest_is_drawn_without_a_network(run_cli, tmp_path, open_page):
    bad = as_csv(tmp_path / "bad <b>.csv.gz", steps(collapse=True))
    good = as_csv(tmp_path / "good.csv.gz", steps(collapse=False))
    file = tmp_path / "out.html"
    done = run_cli("backtest", "--plot", str(file), str(bad), str(good))
    assert done.returncode == 0, done.stderr
    page = open_page(file.as_uri())
    page.wait_for_selector("details[open] .plot .main-svg")
    assert page.locator("details").count() == 2
    assert page.locator(".main-svg .shapelayer path").count() >= 1
    assert page.locator("details:not([open]) .main-svg").count() == 0
    assert page.locator('details[open] .infolayer [class^="g-y"]').count() == 7
    assert "bad <b>.csv.gz" in page.inner_text("details[open] summary")
    assert "would have paged at step 12" in page.inner_text("details[open] summary")
    page.click("details:not([open]) summary")
    poll(page, "document.querySelectorAll('details .plot .svg-container').length === 2")


def test_a_plot_that_cannot_be_written_is_said_before_the_work(run_cli, tmp_path):
    done = run_cli("backtest", "--plot", str(tmp_path / "gone" / "x.html"), "nothing.csv")
    assert done.returncode == 2
    assert done.stderr.startswith("dfx-agent: --plot ")
