"""What the page says of verdicts, collectives, memory and hooks, in a real Chromium."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from scripted_page import overflow_px, serve, standing_still, texts, wait_for_charts
from scripted_source import SCALARS, ScriptedSource
from scripted_torch import CLEAR, STRAGGLER, dressed, hang, in_collective

from dfx_agent.snapshot import CollectiveTime, GroupRow, OpenSpan, SegmentProblem, Verdict

HOSTILE = '<img src=x onerror="window.pwned=1">'
LINES = "#verdict-list > li"


def levels(page) -> list[str]:
    return [line.get_attribute("data-level") for line in page.locator(LINES).all()]


def hanging_source(coverage: float = 0.43) -> ScriptedSource:
    """Rank 2 stays in its rollout, the others are in an all-reduce."""
    source = ScriptedSource(stuck_rank=2, seconds_into_step=75)

    def dress(row):
        full = dressed(row, coverage=coverage)
        return full if row.rank == "2" else in_collective(full, 12.0)

    source.dress = dress
    return source


def test_a_hang_is_red_a_straggler_amber_and_the_rest_quiet(open_page, artifacts):
    source = hanging_source()
    reported = replace(
        hang(time.time()), since_seconds=time.time() - 20, action="Run `kill -CONT 7` to resume it."
    )
    source.verdicts = (STRAGGLER, reported, CLEAR[1], CLEAR[2])
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        assert levels(page) == ["bad", "warn", "quiet"]
        lines = texts(page, LINES)
        assert lines[0].startswith("✕")
        assert "Do: Run kill -CONT 7 to resume it." in lines[0]
        assert "Rank 2 did not arrive in all_reduce@0 #1234; it is in rollout" in lines[0]
        now = time.time()
        lasted = re.search(r"since step 45, (\d+\.\d) s · No step ends", lines[0])
        assert 20 <= float(lasted[1]) < now - reported.since_seconds + 0.1
        assert "slower than its peers at equal tokens" in lines[1]
        assert "0.51 s of each step (8." in lines[1]
        assert "Crash: clear. Straggler: insufficient evidence." in lines[2]
        colors = [
            line.evaluate("node => getComputedStyle(node).borderLeftColor")
            for line in page.locator(LINES).all()
        ]
        assert len(set(colors)) == 3
        page.locator(f"{LINES} >> nth=0 >> .toggle").click()
        page.screenshot(path=artifacts / "page-verdict-hang.png", full_page=True)


def test_opened_evidence_of_a_verdict_stays_open(open_page):
    source = ScriptedSource()
    source.verdicts = (STRAGGLER, *CLEAR[:2])
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector(LINES)
        line = page.locator(LINES).first
        assert not line.locator(".evidence").is_visible()
        page.locator(f"{LINES} >> nth=0 >> .toggle").focus()
        page.keyboard.press("Enter")
        sentence, *evidence = line.locator(".evidence p").all_inner_texts()
        assert sentence == source.snapshot().runs[0].incidents[0].sentence
        assert evidence == list(STRAGGLER.evidence)
        assert line.locator(".toggle").get_attribute("aria-expanded") == "true"
        worse = replace(STRAGGLER, lost_seconds=0.77, evidence=("0.77 s in the newest step",))
        source.verdicts = (hang(time.time()), worse, *CLEAR[1:2])  # a new line comes before it
        moved = page.locator(LINES, has_text="0.77 s of each step")
        moved.wait_for()
        assert moved.locator(".evidence p").all_inner_texts()[1:] == ["0.77 s in the newest step"]
        assert not page.locator(f"{LINES} >> nth=0 >> .evidence").is_visible(), "its own was not"
        moved.locator(".toggle").click()
        assert not moved.locator(".evidence").is_visible()


def test_what_is_clear_or_undecided_is_said_in_one_quiet_line(open_page):
    with serve(ScriptedSource()) as server:
        page = open_page(server.url)
        page.wait_for_selector(LINES)
        assert levels(page) == ["quiet"], "nothing is green while a judge lacks evidence"
        assert page.inner_text(f"{LINES} strong") == "Not everything can be judged"
        assert page.inner_text(f"{LINES} .detail") == (
            "No problem found. Checked: hang, crash. Straggler: 3 of 8 steps needed so far."
        )
        page.click(f"{LINES} .toggle")
        evidence = texts(page, f"{LINES} .evidence p")
        assert "Straggler: insufficient evidence (3 of 8 steps needed so far)" in evidence
        assert "the verdict needs 8" in " ".join(evidence)
        assert evidence[-1].startswith("Checked: 4 ranks for life")


def test_a_verdict_without_evidence_opens_its_sentence(open_page):
    source = ScriptedSource()
    source.verdicts = (replace(STRAGGLER, evidence=()),)
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector(LINES)
        page.locator(f"{LINES} .toggle:visible").click()
        reported = source.snapshot().runs[0].incidents[0].sentence
        assert texts(page, f"{LINES} .evidence p") == [reported]


def test_dead_rank_is_named(open_page, artifacts):
    source = ScriptedSource(16, dead_rank=5, seconds_into_step=40)
    title = "Rank 5 died in backward in actor_update of step 45."
    source.verdicts = (Verdict("crash", "found", "actor", title, ranks=("5",)),)
    with serve(source) as server:
        page = open_page(server.url, (1920, 1080))
        wait_for_charts(page)
        page.screenshot(path=artifacts / "page-16-ranks-one-dead.png", full_page=True)
        assert texts(page, f"{LINES} strong") == [title]
        assert page.inner_text("#fact-ranks") == "15 / 16"
        dead = page.locator("#rank-rows tr").first
        assert dead.locator(".dot").get_attribute("data-state") == "died"
        assert dead.locator(".c-for").inner_text() == "–"
        source.verdicts = CLEAR[2:]
        page.wait_for_selector("text=Rank 5 died >> visible=true")
        page.wait_for_selector("text=Exited without closing the segment: pid 41205")


def test_the_page_s_own_findings_come_after_the_agent_s(open_page, artifacts):
    source = hanging_source()
    source.verdicts = (hang(time.time()),)
    source.num_lost_records = {1: 1204}
    source.other_agent_pid = 777
    source.problems = (SegmentProblem("/dev/shm/x", "version", "x has version 2: upgrade"),)
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        page.screenshot(path=artifacts / "page-stuck-rank.png", full_page=True)
        lines = texts(page, LINES)
        assert "Rank 2 did not arrive" in lines[0]
        rest = " ".join(lines[1:])
        assert "1,204 records lost on rank 1" in rest
        assert "x has version 2: upgrade" in rest
        assert "Another agent (pid 777)" in rest
        assert texts(page, "#rank-rows .c-lost") == ["", "", "1,204", ""], "rank 2 is blamed"


def test_the_collective_a_rank_is_in(open_page):
    with serve(hanging_source()) as server:
        page = open_page(server.url)
        page.wait_for_selector("#rank-rows tr")
        chips = texts(page, "#rank-rows .stage-name")
        assert chips == [*["all_reduce@0 #1234"] * 2, "rollout", "all_reduce@0 #1234"]
        assert texts(page, "#rank-rows .c-for")[0].startswith("12.")
        first = page.locator("#rank-rows .c-stage").first
        assert first.get_attribute("title") == "wait: barrier \u203a all_reduce@0 #1234"


def test_the_stage_around_a_collective_is_named(open_page):
    source = standing_still()
    spans = (
        OpenSpan("stage", "backward", 1.0, 9.0, 1),
        OpenSpan("wait", "collective", 1.0, 9.0, 1),
        OpenSpan("collective", "send@3", 1.0, 2.0, None),
    )
    source.dress = lambda row: replace(row, inflight=spans)
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#rank-rows tr")
        assert page.locator("#rank-rows .c-stage").first.inner_text().split() == [
            "send@3", "in", "backward",
        ]  # fmt: skip


def test_collectives_are_peers_transfer_and_unmatched(open_page):
    source = standing_still()
    source.dress = lambda row: replace(
        dressed(row),
        totals=replace(row.totals, wall_seconds=100.0),
        collectives=(
            CollectiveTime("0", "backward", "arrival", 30, 2048.0, 8.0, 2.0, 0.0),
            CollectiveTime("1", "optimizer", "arrival", 12, 0.0, 4.0, 0.0, 1.0),
            CollectiveTime("0", "backward", "device", 6, None, 50.0, 1.0, 0.0),
        ),
    )
    with serve(source) as server:
        page = open_page(server.url)
        row = page.locator("#collective-rows tr").first
        row.wait_for()
        assert row.locator("td.num").all_inner_texts() == ["12 %", "2.0 %", "1.0 %", "100 %"]
        widths = row.locator(".split i").evaluate_all(
            "nodes => nodes.map(node => node.getBoundingClientRect().width)"
        )
        assert [width / sum(widths) for width in widths] == pytest.approx(
            [12 / 15, 2 / 15, 1 / 15], abs=0.01
        )
        assert page.inner_text("#collectives-note") == "since the agent started"
        row.locator(".split").hover()
        tip = page.inner_text(".tooltip")
        assert "42 collectives of 2.00 KiB, blocked 15.0 s; split by arrival" in tip
        assert "; on the device, 6 timed by device: waiting for peers 50.0 s, transfer" in tip
        assert "backward · group 0 · waiting for peers" in tip


def test_a_blind_spot_is_said(open_page):
    source = standing_still()
    source.dress = lambda row: dressed(row, coverage=0.43)
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#collective-rows tr")
        assert page.inner_text("#collectives-note") == "collectives: partial, 43 % seen"
        assert texts(page, "#collective-rows .c-seen") == ["43 %"] * 4


def test_what_was_not_seen_is_not_zero(open_page):
    source = standing_still()
    groups = (GroupRow("0", 7, None, None),)
    source.dress = lambda row: replace(row, groups=groups if row.rank == "1" else ())
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#collective-rows tr")
        assert texts(page, "#collective-rows th") == ["1"]
        assert texts(page, "#collective-rows td.num") == ["–"] * 4
        assert not page.locator("#memory").is_visible()
        assert not page.locator("#observed").is_visible()


def test_a_run_without_torch_has_no_panels(open_page):
    source = standing_still()
    source.dress = lambda row: row
    source.verdicts = ()
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#rank-rows tr")
        assert not page.locator("#collectives").is_visible()
        assert not page.locator("#memory").is_visible()
        assert page.inner_text(f"{LINES} .detail") == "Nothing has been judged yet."


def test_memory_of_devices_and_host(open_page):
    source = standing_still()
    source.dress = lambda row: dressed(row, num_devices=2)
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#memory-rows tr")
        assert texts(page, "#memory-rows th")[:3] == ["0", "cuda:1", "1"]
        first = page.locator("#memory-rows tr").first
        assert first.locator("td.num").all_inner_texts()[:5] == [
            "3.63 GiB", "+1.25 MiB", "41.0 GiB", "68.0 GiB", "80.0 GiB",
        ]  # fmt: skip
        full, held, used = (
            first.locator(selector).bounding_box()["width"]
            for selector in (".fill", ".held", ".used")
        )
        assert held / full == pytest.approx(68 / 80, abs=0.01)
        assert used / full == pytest.approx(41 / 80, abs=0.01)
        first.locator(".fill").hover()
        reported = page.inner_text(".tooltip")
        assert "peak in backward" in reported
        assert "end/offload of weight_sync" in reported
        assert "2.00 GiB, 3.00 GiB reserved" in reported
        assert not page.locator("#memory .c-ooms").first.is_visible()


def test_host_memory_alone_and_allocator_trouble(open_page):
    source = standing_still()
    source.dress = lambda row: dressed(row, num_devices=0)
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#memory-rows tr")
        assert texts(page, "#memory thead th:visible") == [
            "Rank", "Host", "per step", "Host · 0 to 3.66 GiB",
        ]  # fmt: skip

    def in_trouble(row):
        full = dressed(row)
        return replace(full, devices=(replace(full.devices[0], num_ooms=2.0),))

    source = standing_still()
    source.dress = in_trouble
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#memory-rows tr")
        assert texts(page, "#memory-rows .c-ooms") == ["2 OOM"] * 4


def test_how_the_job_is_observed(open_page):
    source = standing_still()

    def dress(row):
        full = dressed(row)
        failed = {"patch/ddp": -1.0} if row.rank in "13" else {}
        failed |= {"guest/given_up": 1.0} if row.rank == "2" else {}
        return replace(full, gauges={**full.gauges, **failed})

    source.dress = dress
    with serve(source) as server:
        page = open_page(server.url)
        page.wait_for_selector("#observed")
        result = page.inner_text("#observed")
        assert "hooks backward, collectives, ddp, forward, grad_norm, optimizer" in result
        assert "not used: grad_scaler" in result
        assert page.locator("#observed .warn").all_inner_texts()[0] == "ddp failed on ranks 1, 3"
        assert "the guest costs at most 0.037 % of the time, measured in place" in result
        assert result.endswith("the guest exceeds its overhead budget: FLOPs in every 16th step")


def test_a_plain_loop_has_loss_gradient_norm_and_rate(open_page, monkeypatch):
    others = tuple(SCALARS)
    for key, metric in [
        ("torch/loss", "dfx_loss"),
        ("torch/grad_norm", "dfx_grad_norm"),
        ("torch/lr", "dfx_learning_rate"),
    ]:
        monkeypatch.setitem(SCALARS, key, (metric, {}, "1", lambda s, n: 0.5))
    source = standing_still()
    source.without = set(others)
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page, 3)
        assert texts(page, "#charts h2") == ["Loss", "Gradient norm", "Learning rate"]
        assert page.inner_text("[aria-label='Loss'] .chart-value strong") == "0.5"
        axis = "plot => plot._fullLayout.yaxis.range"
        assert page.locator("[aria-label='Learning rate'] .plot").evaluate(axis) == [0.25, 0.75]


def test_what_the_framework_and_torch_report_is_one_curve(open_page, monkeypatch):
    own = ("dfx_actor_grad_norm", {}, "1", lambda s, n: 7.0)
    monkeypatch.setitem(SCALARS, "torch/actor/grad_norm", own)
    with serve(standing_still()) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        values = texts(page, "[aria-label='Gradient norm'] .chart-value strong")
        assert len(values) == 1
        assert values != ["7"]


def test_names_from_the_job_are_text(open_page):
    source = standing_still()
    reported = Verdict(
        "hang", "found", "actor", HOSTILE, ("2",), HOSTILE, HOSTILE, evidence=(HOSTILE,)
    )
    source.verdicts = (reported, replace(reported, state="insufficient evidence", kind="memory"))

    def dress(row):
        full = dressed(row)
        span = OpenSpan("collective", f"{HOSTILE}@{HOSTILE}", 1.0, 1.0, None, 7)
        times = tuple(replace(t, group=HOSTILE, stage=HOSTILE) for t in full.collectives)
        device = replace(full.devices[0], device=HOSTILE, stage_peak_bytes={HOSTILE: 1.0})
        gauges = {f"patch/{HOSTILE}": 1.0}
        return replace(
            full, inflight=(span,), collectives=times, devices=(device, device), gauges=gauges
        )

    source.dress = dress
    with serve(source) as server:
        page = open_page(server.url)
        wait_for_charts(page)
        for button in page.locator(f"{LINES} .toggle:visible").all():
            button.click()
        page.locator("#collective-rows .split").first.hover()
        assert HOSTILE in page.inner_text(".tooltip")
        page.locator("#memory-rows .fill").first.hover()
        assert HOSTILE in page.inner_text(".tooltip")
        for selector in ("#verdict-list", "#rank-rows", "#observed", "#memory-rows"):
            assert HOSTILE in page.locator(selector).text_content(), selector
        images = page.evaluate("[...document.images].map(image => image.getAttribute('src'))")
        assert images == ["static/favicon.svg"]
        assert page.evaluate("window.pwned") is None


PLACES = """() => [...document.querySelectorAll("section, h2, tr, .chart")]
  .filter((node) => node.offsetParent !== null)
  .map((node) => { const box = node.getBoundingClientRect();
    return [Math.round(box.top + scrollY), Math.round(box.left), Math.round(box.height)]; })"""


@pytest.mark.parametrize("size", [(1280, 800), (800, 900)])
def test_nothing_moves_while_values_change(open_page, size):
    source = ScriptedSource(16)
    wide = hang(time.time())
    source.verdicts = (wide, STRAGGLER, *CLEAR[1:])
    with serve(source) as server:
        page = open_page(server.url, size)
        wait_for_charts(page)
        before = page.evaluate(PLACES)
        clock = page.inner_text(f"{LINES} .detail >> nth=0")
        for change in range(6):
            source.verdicts = (wide, replace(STRAGGLER, lost_seconds=0.5 + change), *CLEAR[1:])
            page.wait_for_selector(f"text={0.5 + change:.2f} s of each step")
            assert page.evaluate(PLACES) == before
        assert page.inner_text(f"{LINES} .detail >> nth=0") != clock
        assert overflow_px(page) == 0


OPEN_PIECE = """async (span) => {
  const { Lanes } = await import("./static/lanes.js");
  const lanes = new Lanes(() => {});
  lanes.ranks.set("actor/0", { state: "live", step: 1, inflight: span ? [span] : [] });
  const rows = [{ step: 1, begin_seconds: 0, pieces: [
    { kind: "stage", name: "backward", begin_seconds: 0, end_seconds: 5 }] }];
  const { kind, name } = lanes.piecesOf({ key: "actor/0", rows }, 9).at(-1);
  return [kind, name];
}"""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("collective", ["wait", "collective"]),
        ("wait", ["wait", "x@0"]),
        ("stage", ["stage", "x@0"]),
        (None, ["idle", "idle"]),
    ],
)
def test_an_open_collective_is_drawn_as_it_will_be_accounted(module_page, kind, expected):
    span = {"kind": kind, "name": "x@0", "begin_seconds": 5.0}
    assert module_page.evaluate(OPEN_PIECE, span if kind else None) == expected
