"""The pipeline on the page, in a real Chromium: the bottleneck, its chain, its causes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted_page import GREEN, overflow_px, serve, standing_still, texts

from dfx_agent.snapshot import Bottleneck, PipelineCause, Snapshot

HOSTILE = '<img src=x onerror="window.pwned=1">'
SLOW = f"replica 1 takes 9 ms for a token, the others 3 ms {HOSTILE}"
CAUSE = PipelineCause("rollout", f"rollout replica 1 {HOSTILE}", SLOW, 1.25, kind="slow engine")
CHAIN = ("ranks of trainer wait for samples for 2 s of a step of 4 s (50%)", SLOW)
FOUND = Bottleneck(
    "found", "rollout-bound", "trainer", "rollout", 2.0, 0.5, 4.0, CHAIN, (CAUSE,), "", 3, 7
)


class PipelineSource:
    """A scripted run with one rank more, an orchestrator, and this bottleneck."""

    def __init__(self, bottleneck: Bottleneck | None) -> None:
        self._scripted, self._bottleneck = standing_still(), bottleneck

    def __getattr__(self, name: str):
        return getattr(self._scripted, name)

    def snapshot(self) -> Snapshot:
        reported = self._scripted.snapshot()
        (run,) = reported.runs
        orchestrator = replace(run.ranks[0], role="orchestrator", rank="p7", pid=7)
        changed = replace(run, ranks=(*run.ranks, orchestrator), bottleneck=self._bottleneck)
        return replace(reported, runs=(changed,))


@pytest.mark.parametrize(("width", "scheme"), [(800, "light"), (1440, "dark")])
def test_a_bottleneck_is_shown_with_its_rank_and_share(open_page, artifacts, width, scheme):
    with serve(PipelineSource(FOUND)) as server:
        page = open_page(server.url, (width, 900), scheme)
        page.wait_for_selector("#bottleneck")
        page.locator("#pipeline").screenshot(path=artifacts / f"pipeline-{width}-{scheme}.png")
        assert page.inner_text("#bottleneck-title") == "Bound by rollout"
        assert page.inner_text("#bottleneck-cost") == "2.00 s of a step of 4.00 s (50 %)"
        assert texts(page, "#bottleneck-chain li") == list(CHAIN)
        assert texts(page, "#bottleneck-cause-rows tr > *") == [
            CAUSE.component,
            "1.25 s a step",
            "–",
        ]
        assert set(texts(page, "#pipeline-wait-rows th")) == {"actor", "orchestrator"}
        assert overflow_px(page) == 0
        assert page.evaluate("window.pwned") is None


def test_balanced_is_shown_and_not_in_the_colour_of_a_run_that_is_clear(open_page):
    with serve(PipelineSource(Bottleneck("clear", "balanced: trains in 80%", "trainer"))) as server:
        page = open_page(server.url)
        page.wait_for_selector("#bottleneck")
        assert page.inner_text("#bottleneck-title") == "Balanced"
        assert page.evaluate(GREEN) == []


def test_a_run_of_one_role_has_no_pipeline(open_page):
    with serve(standing_still()) as server:
        page = open_page(server.url)
        page.wait_for_selector("#rank-rows tr")
        assert page.locator("#pipeline").is_hidden()
