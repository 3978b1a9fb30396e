"""The page in a real Chromium, fed by a scripted run: what is shown, how fast, how safely."""

from __future__ import annotations

import time

import pytest
from scripted_page import overflow_px, poll, serve, standing_still, texts, wait_for_charts
from scripted_source import NAN_STEP, RUN, SCALARS, ScriptedSource

from dfx_agent.snapshot import SegmentProblem

HOSTILE = '<img src=x onerror="window.pwned=1">'


def hover_text(page, card, step: int) -> str:
    """What the hover box of a chart says at a step."""
    plot = card.locator(".plot")
    x = plot.evaluate("(p, s) => p._fullLayout.xaxis._offset + p._fullLayout.xaxis.d2p(s)", step)
    box = plot.bounding_box()
    for nudge in (0, 1):
        page.mouse.move(box["x"] + x + nudge, box["y"] + box["height"] / 2)
        page.wait_for_timeout(150)
    text = plot.locator(".hoverlayer").text_content()
    assert f"step {step}" in text
    return text


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ((800, 900), "light"),
        ((1280, 800), "light"),
        ((1440, 900), "dark"),
        ((1920, 1080), "dark"),
    ],
)
def test_page_shows_the_run_at_every_size(open_page, artifacts, size, scheme):
    source = ScriptedSource()
    with serve(source) as server:
        page = open_page(server.url, size, scheme)
        wait_for_charts(page)
        page.screenshot(path=artifacts / f"page-{size[0]}-{scheme}.png", full_page=True)
        assert overflow_px(page) == 0
        assert texts(page, "#rank-rows th span:first-of-type") == ["0", "1", "2", "3"]
        assert page.inner_text("#run-name") == RUN
        assert page.inner_text("#fact-ranks") == "4 / 4"
        assert page.inner_text("#fact-step") in page.title()
        assert int(page.inner_text("#fact-step")) >= 45  # a loaded machine opens it later
        assert page.inner_text("#verdict-list strong") == "Not everything can be judged"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == {"dark": "rgb(14, 17, 22)", "light": "rgb(243, 245, 248)"}[scheme]


@pytest.mark.smoke
def test_figures_are_those_of_the_source(open_page):
    source = standing_still()
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        run = source.snapshot().runs[0]
        assert page.inner_text("#fact-step") == str(run.ranks[0].step)
        for rank, row in zip(run.ranks, page.locator("#rank-rows tr").all(), strict=True):
            shares = row.locator(".c-share").all_inner_texts()
            active = 100 * rank.last.active_seconds / rank.last.wall_seconds
            assert float(shares[0].rstrip(" %")) == pytest.approx(active, abs=0.5)
            assert sum(float(share.rstrip(" %")) for share in shares) == pytest.approx(100, abs=1.6)
            cell = next(c for c in run.steps[-1].cells if c.rank == rank.rank)
            tokens = row.locator(".c-tokens").inner_text().replace(",", "")
            rate = cell.tokens["response"] / cell.split.wall_seconds
            assert float(tokens) == pytest.approx(rate, abs=0.6)
        row = run.steps[-1]
        assert page.inner_text("#fact-step-time") == f"{row.end_seconds - row.begin_seconds:.2f} s"
        entropy = next(s for s in run.scalars if s.key == "actor/entropy").moments.sum
        shown = page.locator("[aria-label='Entropy'] .chart-value strong").inner_text()
        assert float(shown) == pytest.approx(entropy, rel=1e-3)


@pytest.mark.smoke
def test_a_change_comes_to_the_open_page(open_page):
    source = ScriptedSource()
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        for name in ("dreaming", "rollout", "pondering"):
            source.renames = {"rollout": name}
            result = "name => document.getElementById('legend').textContent.includes(name)"
            poll(page, result, name)


def test_clocks_tick_between_snapshots(open_page):
    def read() -> tuple[float, list[float], float]:
        began = time.monotonic()
        seconds = [float(text.rstrip(" s")) for text in texts(page, "#rank-rows .c-for")]
        return began, seconds, time.monotonic()

    with serve(standing_still()) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        began, first, read_at = read()
        page.wait_for_timeout(1000)
        read_again_at, later, ended = read()
        for before, after in zip(first, later, strict=True):
            assert read_again_at - read_at - 0.4 < after - before < ended - began + 0.4


@pytest.mark.smoke
def test_names_from_the_job_are_text(open_page, artifacts, monkeypatch):
    monkeypatch.setitem(SCALARS, f"my/{HOSTILE}", (None, {}, HOSTILE, lambda s, n: 1.0))
    reward = ("dfx_reward", {"stat": "mean"}, "reward", lambda s, n: 0.5)
    monkeypatch.setitem(SCALARS, f"{HOSTILE}%{{y}}<b>", reward)
    source = standing_still()
    source.renames = {"rollout": HOSTILE, "reward": "__proto__", "validation": "constructor"}
    source.run_names = (HOSTILE, "other")
    source.problems = (SegmentProblem("/dev/shm/x", "version", f"bad {HOSTILE}"),)
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        poll(page, "t => document.body.innerText.includes(t)", HOSTILE)
        page.locator("#rank-rows .split.last i").first.hover()
        assert HOSTILE in page.inner_text(".tooltip")
        for selector in ("#timeline", "#steps", ".plot >> nth=0"):
            box = page.locator(selector).bounding_box()
            for share in (0.3, 0.5, 0.7):
                page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
                page.wait_for_timeout(60)
        page.screenshot(path=artifacts / "page-hostile-names.png", full_page=True)
        for selector in ("#legend", "#scalars", "#verdict-list", "#run-select", "#rank-rows"):
            assert HOSTILE in page.locator(selector).text_content(), selector
        images = page.evaluate("[...document.images].map(image => image.getAttribute('src'))")
        assert images == ["static/favicon.svg"]
        assert page.evaluate("window.pwned") is None


def test_absent_is_not_zero_and_nan_is_not_dropped(open_page, artifacts):
    keys = ["critic/rewards/mean", "actor/entropy"]
    # a rank is stuck: the step after the NaN stays the newest, however slow this machine is
    source = ScriptedSource(num_past_steps=NAN_STEP + 1, without=keys, stuck_rank=2)
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page, 2)
        for label in ("Reward", "Entropy"):
            card = page.locator(f"[aria-label='{label}']")
            assert card.locator(".absent").inner_text() == "not reported by this run"
            assert card.locator(".chart-value").count() == 0
        assert (
            page.inner_text("#verdict-list strong") == f"actor/grad_norm is NaN at step {NAN_STEP}"
        )
        card = page.locator("[aria-label='Gradient norm']")
        assert card.locator(".chart-value strong").inner_text() == "NaN"
        crosses = "({ x, marker }) => x.filter((_, index) => marker.opacity[index])"
        marks = card.locator(".plot").evaluate(f"plot => ({crosses})(plot.data[1])")
        assert marks == [NAN_STEP]
        card.scroll_into_view_if_needed()
        assert "NaN" in hover_text(page, card, NAN_STEP)
        assert "NaN" not in hover_text(page, card, NAN_STEP - 2)
        page.screenshot(path=artifacts / "page-absent-and-nan.png", full_page=True)


def test_curves_continue_from_the_stream(open_page):
    with serve(ScriptedSource()) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        last_x = "() => document.querySelector('.plot').data[0].x.at(-1)"
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        first = page.evaluate(last_x)
        assert first >= 44
        poll(page, f"first => ({last_x})() > first", first)
        assert [url for url in asked if "scalars" in url] == []


def test_page_says_what_to_type_until_a_run_appears(open_page, artifacts):
    source = ScriptedSource()
    source.run_names = ()
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#empty")
        assert "dfx-agent run -- torchrun" in page.inner_text("#empty")
        page.screenshot(path=artifacts / "page-empty.png")
        source.run_names = (RUN,)
        page.wait_for_selector("#rank-rows tr")
        assert not page.locator("#empty").is_visible()


@pytest.mark.smoke
def test_lost_agent_is_reported_and_found_again(open_page, artifacts):
    with serve(ScriptedSource()) as server:
        port = int(server.url.rpartition(":")[2])
        page = open_page(server.url, allows_errors=True)
        page.wait_for_selector("[data-state='live'] >> text=ago")
    page.wait_for_selector("text=agent unreachable")
    page.wait_for_selector("text=The agent cannot be reached")
    frozen = texts(page, "#rank-rows .c-for")
    page.wait_for_timeout(700)
    assert texts(page, "#rank-rows .c-for") == frozen
    assert "No problem found" not in page.inner_text("#verdict-list")
    page.screenshot(path=artifacts / "page-agent-lost.png")
    with serve(ScriptedSource(3), port):
        page.wait_for_selector("#freshness[data-state='live']")
        poll(page, "document.querySelectorAll('#rank-rows tr').length === 3")


def test_agent_that_answers_without_progress_is_reported(open_page):
    with serve(standing_still()) as server:
        page = open_page(server.url)
        page.wait_for_selector("#freshness[data-state='stale']")
        assert "its last poll was" in page.inner_text("#freshness")


def test_chosen_run_stays_chosen(open_page):
    source = ScriptedSource()
    source.run_names = (RUN, "exp/7 %41")
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#rank-rows tr")
        page.select_option("#run-select", "exp/7 %41")
        poll(page, "document.title.endsWith('exp/7 %41')")
        wait_for_charts(page)
        page.reload()
        poll(page, "document.title.endsWith('exp/7 %41')")
        assert page.input_value("#run-select") == "exp/7 %41"


@pytest.mark.smoke
def test_token_opens_the_page_and_leaves_the_address(open_page):
    with serve(ScriptedSource(), token="s3cret") as server:
        page = open_page(f"{server.url}/?token=s3cret#x", allows_errors=True)
        page.wait_for_selector("#rank-rows tr")
        wait_for_charts(page)
        assert "s3cret" not in page.url


def test_keyboard_reaches_the_pieces_and_the_search(open_page):
    with serve(ScriptedSource()) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        page.focus("#timeline")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#walk-says").startswith("actor rank 1, step 4")
        assert page.locator(".tooltip").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator(".tooltip").is_visible()
        page.focus("#steps")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#walk-says").startswith("Step 4")
        page.locator("#rank-rows .bars").first.focus()
        assert "rollout" in page.inner_text(".tooltip")
        assert "rollout" in page.locator("#rank-rows .bars").first.get_attribute("aria-label")
        page.keyboard.press("/")
        page.keyboard.type("response mean")
        shown = [name for name in texts(page, ".scalar:visible .scalar-name") if name]
        assert shown == ["response_length/mean"]
        assert page.inner_text("#scalars-note").startswith("1 of ")
        page.keyboard.press("Escape")
        assert page.locator(".scalar:visible").count() > 5


def test_sixteen_ranks_are_updated_in_place(open_page):
    with serve(ScriptedSource(16)) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        page.evaluate(
            """() => {
              window.added = 0;
              const count = (records) => records.forEach((r) => { window.added += [...r.addedNodes]
                .filter((node) => node.nodeType === 1 && node.tagName !== "I").length; });
              new MutationObserver(count).observe(document.getElementById("rank-rows"),
                { childList: true, subtree: true });
            }"""
        )
        page.wait_for_timeout(3000)
        assert page.evaluate("window.added") == 0


@pytest.mark.smoke
def test_numbers_read_well(module_page):
    got = module_page.evaluate(
        """async () => {
          const f = await import("./static/format.js");
          return [f.duration(0.0843), f.duration(6.741), f.duration(95.24), f.duration(125),
            f.duration(7384), f.scalar(0.000812), f.scalar(10483.2), f.scalar(-0.5), f.scalar(NaN),
            f.scalar(-Infinity), f.scalar(null), f.toNumber("NaN"), f.toNumber(null),
            f.percent(0.021), f.percent(0.85), f.percent(null), f.rankList(["0", "1", "2", "5"]),
            f.rankList(["7"]), f.rankList(["p12", "p13"]), f.elapsed(12.34),
            f.finePercent(0.000354), f.finePercent(0), f.finePercent(1e-7),
            f.bytes(1023), f.bytes(1024 * 1023.7),
            f.bytes(65712345600), f.bytes(null), f.signedBytes(1310720), f.signedBytes(-2048),
            f.signedBytes(0), f.axisSeconds(2.5), f.axisSeconds(120), f.axisSeconds(140),
            f.axisSeconds(7200), f.axisSeconds(5400)];
        }"""
    )
    nan = got.pop(11)
    assert nan != nan  # noqa: PLR0124  NaN alone differs from itself
    assert got == [
        "84 ms", "6.74 s", "95.2 s", "2 min 05 s", "2 h 03 min", "8.12e−4", "10,483", "−0.5", "NaN",
        "−∞", "–", None, "2.1 %", "85 %", "–", "ranks 0–2, 5", "rank 7", "ranks p12, p13", "12.3 s",
        "0.035 %", "0 %", "< 0.001 %", "1.00 KiB", "1.00 MiB", "61.2 GiB", "–", "+1.25 MiB",
        "−2.00 KiB", "0 B", "2.5 s", "2 min", "2 min 20 s", "2 h", "1 h 30 min",
    ]  # fmt: skip


def test_unknown_stages_keep_a_colour(module_page):
    colors = module_page.evaluate(
        """async () => {
          const { stageColor } = await import("./static/palette.js");
          return ["my_stage", "my_stage", "other", "__proto__", "constructor"].map(stageColor);
        }"""
    )
    assert colors[0] == colors[1] != colors[2]
    assert all(color.startswith("hsl(") for color in colors)
