"""A job of 1,024 ranks on the page: all on one screen, and few of them in full."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from live_processes import until
from scripted_page import overflow_px, poll, serve, texts
from scripted_source import ScriptedSource
from scripted_torch import dressed

from dfx_agent.snapshot import Verdict
from dfx_agent.web.visible_ranks import NUM_OF_LARGE_JOB

NUM_RANKS = 1024
CULPRIT = "700"
SLOW = Verdict(
    "straggler", "found", "actor", f"rank {CULPRIT} is slower than its peers", ranks=(CULPRIT,),
    lost_seconds=0.51,
)  # fmt: skip
NUM_ROWS = 4  # who is blamed, and three beside
# every square of the job, whether it is in the window as it is
SEEN = """() => [...document.querySelectorAll("#job-nodes button")].filter((cell) => {
  const box = cell.getBoundingClientRect();
  return box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth;
}).length"""
FIRST_ROW = "#rank-rows th span:first-of-type"


def on_nodes(row):
    """Eight to a node; one has died, one is gone."""
    rank = int(row.rank)
    state = {5: "died", 6: "exited"}.get(rank, row.state)
    return replace(dressed(row), node=f"node-{rank // 8:03d}", local_rank=rank % 8, state=state)


@pytest.fixture(scope="module")
def source():
    now = time.time()
    source = ScriptedSource(NUM_RANKS, clock=lambda: now, num_past_steps=4)
    source.dress = on_nodes
    source.verdicts = (SLOW,)
    return source


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_ranks_are_on_one_screen_the_culprit_first(open_page, artifacts, source, scheme):
    with serve(source) as server:
        page = open_page(server.url, (1440, 900), scheme)
        poll(page, "document.querySelectorAll('#job-nodes button').length === 1024")
        poll(page, f"({SEEN})() === 1024")
        page.screenshot(path=artifacts / f"page-1024-{scheme}.png")
        page.screenshot(path=artifacts / f"page-1024-{scheme}-whole.png", full_page=True)
        assert overflow_px(page) == 0
        assert texts(page, ".node-name")[:2] == ["node-087", "node-000"]
        blamed = page.locator(
            "#job-nodes [data-blame='warning'], #job-nodes [data-blame='critical']"
        )
        assert blamed.count() == 1
        label = blamed.get_attribute("aria-label")
        assert label.startswith(f"actor rank {CULPRIT} on node-087, local rank 4: live, blamed")
        note = "1,024 ranks on 128 nodes · 1 ▲ blamed · 1 ✕ died · 1 exited"
        assert page.inner_text("#job-note") == note
        assert page.inner_text("#fact-ranks") == "1022 / 1024"
        rows = texts(page, FIRST_ROW)
        assert rows[0] == CULPRIT
        assert rows[1:] == ["696", "697", "698"], "a few peers to compare with"
        culprit, peer = (page.locator("#rank-rows tr").nth(index) for index in (0, 1))
        assert culprit.locator(".c-delay").inner_text() == "0.51 s a step"
        assert "victim" in peer.get_attribute("class")
        tint = "row => getComputedStyle(row.children[1]).backgroundColor"
        assert culprit.evaluate(tint) != peer.evaluate(tint)


def test_a_rank_is_shown_in_full_when_it_is_opened(open_page, source):
    with serve(source) as server:
        page = open_page(server.url)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        cell = page.locator("#job-nodes [data-key='actor/1000']")
        cell.click()
        poll(page, "document.querySelector('#rank-rows tr.opened') !== null")
        assert page.locator("#rank-rows tr.opened th").inner_text().startswith("1000")
        assert cell.get_attribute("aria-pressed") == "true"
        assert page.locator("#rank-rows tr").count() == NUM_ROWS + 1
        poll(page, "document.getElementById('timeline').height > 100")
        assert any("/stream" in url and "rank=actor%2F1000" in url for url in asked)
        cell.click()
        poll(page, "n => document.querySelectorAll('#rank-rows tr').length === n", NUM_ROWS)
        assert page.locator("#rank-rows tr.opened").count() == 0


def test_timelines_are_those_of_the_ranks_in_full(open_page, source):
    with serve(source) as server:
        page = open_page(server.url)
        with page.expect_request(lambda request: "/timeline?" in request.url) as found:
            page.reload()
        assert found.value.url.count("rank=actor") == NUM_OF_LARGE_JOB


def test_a_tab_that_nobody_sees_has_no_stream(open_page):
    with serve(ScriptedSource()) as server:
        page = open_page(server.url)
        page.wait_for_selector("#rank-rows tr")
        channels = server._app.state.stream._channels
        assert len(channels) == 1
        hide = """hidden => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(hide, arg=True)
        until(lambda: not channels, "no stream is open")
        shown = page.inner_text("#fact-step")
        page.evaluate(hide, arg=False)
        poll(page, "step => document.getElementById('fact-step').textContent !== step", shown)
        assert len(channels) == 1


DRAWN = """() => {
  const canvas = document.getElementById("heatmap-canvas");
  const { data } = canvas.getContext("2d").getImageData(70, 2, canvas.width - 80, 400);
  const colors = new Set();
  for (let at = 0; at < data.length; at += 4) colors.add(data.slice(at, at + 3).join());
  return colors.size;
}"""


def test_a_cell_of_the_heatmap_opens_its_rank_and_step(open_page, artifacts, source):
    with serve(source) as server:
        page = open_page(f"{server.url}/?#view=ranks")
        poll(page, "document.getElementById('heatmap-note').textContent !== ''")
        assert page.inner_text("#heatmap-note") == "actor · 1,024 ranks, 4 steps"
        assert page.evaluate(DRAWN) > 3
        page.focus("#heatmap-canvas")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#heatmap-says").startswith("actor rank 1, step 3: active ")
        page.screenshot(path=artifacts / "page-1024-heatmap.png", full_page=True)
        page.keyboard.press("Enter")
        poll(page, "document.querySelector(\"#rank-rows tr[data-rank='actor/1'].marked\") !== null")
        assert "rank=actor%2F1&step=3" in page.url
        page.select_option("#heatmap-measure", "tokens")
        page.select_option("#heatmap-order", "value")
        page.focus("#heatmap-canvas")
        page.keyboard.press("ArrowUp")
        poll(page, "document.getElementById('heatmap-says').textContent.includes('rank 1023')")
