"""The banner of the page, in a real Chromium: its lines, its buttons, what is in doubt, views."""

from __future__ import annotations

import time
from dataclasses import replace

from scripted_page import poll, serve, texts
from scripted_source import ScriptedSource
from scripted_torch import CLEAR, STRAGGLER, hang

from dfx_agent.snapshot import Suspicion, Verdict

LINES = "#verdict-list > li"
UNSURE = Verdict("straggler", "insufficient evidence", "actor", "ranks differ too much")


def test_the_buttons_of_an_incident_show_its_rank_and_copy_it(open_page):
    source = ScriptedSource(64)
    source.verdicts = (replace(STRAGGLER, ranks=("45",), action="Move `rank 45`."), *CLEAR[:2])
    with serve(source) as server:
        page = open_page(server.url)
        line = page.locator(LINES).first
        line.wait_for()
        assert line.locator(".action").inner_text() == "Do: Move rank 45."
        assert line.locator(".action code").inner_text() == "rank 45"
        assert page.title() == "▲ straggler rank 45 · gsm8k-grpo"
        icon = "document.querySelector('link[rel=icon]').getAttribute('href')"
        assert page.evaluate(icon) == "static/favicon-warn.svg"
        assert line.locator(".runbook").get_attribute("href") == "runbook#dfxstraggler"
        line.get_by_text("Show rank 45").click()
        row = "#rank-rows tr[data-rank='actor/45'].marked"
        poll(page, f'document.querySelector("{row}") !== null')
        box = page.locator(row).bounding_box()
        assert 0 < box["y"] < 900
        assert "rank=actor%2F45" in page.url
        page.evaluate(
            "document.addEventListener('copy', (e) => { window.copied = String(getSelection()); })"
        )
        line.get_by_text("Copy for chat").click()
        line.get_by_text("Copied").wait_for()


def test_a_suspicion_is_shown_with_how_far_it_is(open_page):
    source = ScriptedSource(stuck_rank=1, seconds_into_step=64)
    waits = "Ranks 0, 2 wait for rank 1. It is called a hang after 300 s."
    suspicion = Suspicion(("1",), time.time() - 64, 300.0)
    unsure = Verdict("hang", "insufficient evidence", "actor", waits, suspicion=suspicion)
    source.verdicts = (unsure, *CLEAR[1:])
    with serve(source) as server:
        page = open_page(server.url)
        line = page.locator(f"{LINES}[data-level='unsure']")
        line.wait_for()
        assert line.locator("strong").inner_text() == "Ranks 0, 2 wait for rank 1."
        result = line.locator(".suspicion .num").inner_text()
        assert result.endswith(" s of 300 s")
        assert 64 <= int(result.split()[0]) < 90
        share = line.locator(".fill i").evaluate(
            "node => node.offsetWidth / node.parentNode.offsetWidth"
        )
        assert 0.2 < share < 0.35
        assert page.title().startswith("step "), "it is no alarm yet"


def test_an_incident_in_doubt_stays_grey_with_its_evidence_open(open_page):
    source = ScriptedSource()
    source.verdicts = (STRAGGLER, *CLEAR[:2])
    with serve(source) as server:
        page = open_page(server.url)
        line = page.locator(f"{LINES}[data-incident]")
        line.wait_for()
        line.locator(".toggle").click()
        source.verdicts = (UNSURE, *CLEAR[:2])
        doubtful = page.locator(f"{LINES}.doubtful")
        doubtful.wait_for()
        assert "Not certain at the moment, last seen" in doubtful.inner_text()
        assert doubtful.locator(".evidence").is_visible()
        source.verdicts = (STRAGGLER, *CLEAR[:2])
        page.wait_for_selector(f"{LINES}[data-incident]:not(.doubtful)")
        assert line.locator(".evidence").is_visible()
        source.verdicts = (replace(UNSURE, state="clear"), *CLEAR[:2])
        poll(page, f"document.querySelectorAll('{LINES}.doubtful').length === 0")


def test_a_link_opens_the_same_view_rank_and_run(open_page):
    source = ScriptedSource(32)
    with serve(source) as server:
        page = open_page(f"{server.url}/?#view=ranks&rank=30")
        page.wait_for_selector("#ranks")
        poll(
            page, "document.querySelector(\"#rank-rows tr[data-rank='actor/30'].marked\") !== null"
        )
        assert page.locator("#time").is_hidden()
        assert page.locator("#views a[aria-current]").inner_text() == "Ranks"
        page.click("#views a >> text=Timeline")
        page.wait_for_selector("#time")
        assert page.locator("#ranks").is_hidden()
        assert "view=timeline" in page.url
        page.go_back()
        page.wait_for_selector("#ranks")
        page.click("#views a >> text=Pipeline")
        page.wait_for_selector("#view-empty")
        assert "one role and no rollout engine" in page.inner_text("#view-empty")
        page.click("#views a >> text=Data")
        page.wait_for_selector("#view-empty >> text=No batch has been compared")
        page.click("#views a >> text=Agent")
        page.wait_for_selector("#agent-facts >> text=1,204,000")
        assert page.locator("#view-empty").is_hidden()


def test_what_leads_on_the_overview_follows_the_incident(open_page):
    source = ScriptedSource()
    collapse = Verdict("divergence", "found", "", "Training has been diverging", cause="KL first")
    source.verdicts = (collapse, *CLEAR[:2])
    first = "#run-view > :not([hidden], .elsewhere)"
    top = (
        f"[...document.querySelectorAll('{first}')].sort((a, b) => a.offsetTop - b.offsetTop)[0].id"
    )
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector(f"{LINES}[data-level='bad']")
        poll(page, f"{top} === 'charts'")
        source.verdicts = (hang(time.time()), *CLEAR[1:])
        page.wait_for_selector("text=did not arrive")
        poll(page, f"{top} === 'ranks'")
        assert texts(page, "#views a")[0] == "Overview"
