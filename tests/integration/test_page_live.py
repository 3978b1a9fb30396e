"""The page in a real Chromium, fed by a real 4-rank training under ``dfx-agent run``."""

import pytest
from live_processes import DEMO, TORCHRUN, demo_environment, running, until, unused_port
from scripted_page import CHROMIUM_FLAGS, wait_for_charts

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="no playwright; pip install playwright", exc_type=ImportError
)

COMMAND = [*TORCHRUN, "4", *DEMO, "--steps", "1000", "--prompts-per-rank", "4"]
NUM_STEPS_WATCHED = 5
WATCH = """() => {
  window.shown = [];
  window.stages = new Set();
  const note = () => {
    const step = document.getElementById("fact-step").textContent;
    if (window.shown.at(-1)?.[0] !== step) window.shown.push([step, Date.now() / 1000]);
    for (const name of document.querySelectorAll("#rank-rows .stage-name")) {
      window.stages.add(name.textContent);
    }
  };
  new MutationObserver(note).observe(document.body,
    { subtree: true, childList: true, characterData: true });
}"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    environment = demo_environment(DFX_DIR=str(folder / "segments"), TMPDIR=str(folder))
    with running(folder, unused_port(), COMMAND, environment) as agent:
        until(lambda: num_steps(agent) >= 4, "4 steps", 90)
        yield agent


@pytest.fixture(scope="module")
def page(agent, chromium_binary):
    """The open page; ``page.complaints`` has console messages and requests to strangers."""
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_binary, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="dark")
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(f"exception: {error}"))
        page.on("console", lambda message: page.complaints.append(message.text))
        own = (f"{agent.url}/", "data:")
        page.on("request", lambda r: r.url.startswith(own) or page.complaints.append(r.url))
        page.goto(agent.url)
        page.wait_for_selector("#rank-rows tr")
        yield page
        browser.close()


def num_steps(agent):
    assert agent.process.popen.poll() is None, agent.process.errors
    return min((row["step"] or 0 for row in agent.ranks().values()), default=0)


def test_all_ranks_are_live(page):
    names = page.locator("#rank-rows th span:first-of-type").all_inner_texts()
    assert names == ["0", "1", "2", "3"]
    dots = page.locator("#rank-rows .dot")
    assert [dots.nth(i).get_attribute("data-state") for i in range(4)] == ["live"] * 4
    assert page.inner_text("#fact-ranks") == "4 / 4"
    assert page.inner_text("#run-name") == "it"
    assert page.locator("#freshness").get_attribute("data-state") == "live"


def test_charts_have_the_runs_own_values(page, agent):
    wait_for_charts(page)
    keys = {
        "Reward": "critic/rewards/mean",
        "Gradient norm": "actor/grad_norm",
        "Entropy": "actor/entropy",
        "KL": "actor/ppo_kl",
    }
    for label, key in keys.items():
        card = page.locator(f"[aria-label^='{label}']").first
        shown = card.locator(".plot").evaluate("plot => [[...plot.data[0].x], [...plot.data[0].y]]")
        (history,) = agent.json(f"/api/v1/runs/it/scalars?key={key}")
        known = dict(zip(history["steps"], history["values"], strict=True))
        assert len(shown[0]) >= 3, label
        for step, value in zip(*shown, strict=True):
            assert value == pytest.approx(known[step], rel=1e-6), (label, step)


def test_page_follows_the_job_without_a_reload(page, agent):
    """From the first ``set_step`` of a step in the job to its number in the page: one clock."""
    wait_for_charts(page)
    page.evaluate(WATCH)
    loads = []
    page.on("framenavigated", lambda frame: loads.append(frame.url))
    until(lambda: len(page.evaluate("window.shown")) > NUM_STEPS_WATCHED, "steps on the page", 60)
    begins = {}
    for row in agent.json("/api/v1/runs/it/timeline?steps=60"):
        begins.setdefault(row["step"], []).append(row["begin_seconds"])
    shown = [(int(step), seconds) for step, seconds in page.evaluate("window.shown")]
    assert [step for step, _ in shown] == sorted({step for step, _ in shown}), "only forwards"
    # a step that the page skipped was seen when a later one was
    passed = [step for step in sorted(begins.keys() - {None}) if shown[0][0] < step <= shown[-1][0]]
    delays = [
        next(seconds for number, seconds in shown if number >= step) - min(begins[step])
        for step in passed
    ]
    print("seconds from set_step to the page:", [round(delay, 3) for delay in delays])
    assert min(delays) > 0
    assert loads == [], "without a reload"
    assert len(page.evaluate("[...window.stages]")) >= 3, "the current stage changes"


def test_stage_bars_and_timeline_are_drawn(page):
    wait_for_charts(page)
    bars = page.locator("#rank-rows .split.last")
    assert bars.count() == 4
    for index in range(4):
        assert bars.nth(index).locator("i").count() >= 5
    legend = page.inner_text("#legend")
    for stage in ("rollout", "forward", "backward", "weight_sync"):
        assert stage in legend


# What a page does whose tab was hidden, or busy, while four steps passed.
LOOK_AWAY = """async () => {
  const { Lanes } = await import("./static/lanes.js");
  const { getJson } = await import("./static/feed.js");
  const pause = () => new Promise((done) => setTimeout(done, 100));
  const runNow = async () => (await getJson("api/v1/snapshot")).runs[0];
  const newestStep = (run) => Math.min(...run.ranks.map((rank) => rank.step));
  const lanes = new Lanes(() => {});
  const look = async () => {
    lanes.update(await runNow(), 0);
    do await pause(); while (lanes.isFetching);
  };
  await look();
  const left = newestStep(await runNow());
  while (newestStep(await runNow()) < left + 4) await pause();
  await look();
  return [...lanes.lanes.values()].map((lane) => lane.rows.map((row) => row.step));
}"""


def test_timeline_has_no_gap_after_looking_away(page):
    lanes = page.evaluate(LOOK_AWAY)
    assert len(lanes) == 4
    for steps in lanes:
        assert steps == list(range(steps[0], steps[-1] + 1))


def test_page_is_worth_looking_at(page, artifacts):
    wait_for_charts(page)
    page.screenshot(path=artifacts / "page-live-demo.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    assert (artifacts / "page-live-demo.png").stat().st_size > 50_000


def test_nothing_was_logged_and_no_stranger_asked(page):
    assert page.complaints == []
