"""A real training that really collapses, beside a healthy one: live signals, verdict, page, reset.

The two jobs differ in one flag. Learning is slow enough (1e-5) that the healthy run's signals stay
in their bands; the fault multiplies the learning rate by 100.
"""

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack

import pytest
from live_processes import DEMO, TORCHRUN, demo_environment, serving, started, until, unused_port
from scripted_page import poll

from dfx_agent.agent import folder_token

ONSET, NUM_STEPS = 30, 64
OPTIONS = ["--prompts-per-rank", "4", "--learning-rate", "1e-5", "--validate-every", "0",
           "--checkpoint-every", "0", "--steps", "10000"]  # fmt: skip


def rows(agent):
    return {row["run"]: row for row in agent.snapshot()["runs"]}


def divergence(row):
    return next((v for v in row["verdicts"] if v["kind"] == "divergence"), None)


def samples(agent, name):
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", agent.get("/metrics"), re.MULTILINE)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in lines]


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """Serves both runs; each of 2 ranks."""
    folder = tmp_path_factory.mktemp("health")
    env = demo_environment(DFX_DIR=str(folder / "dir"), TMPDIR=str(folder))
    job = [*TORCHRUN, "2", *DEMO, *OPTIONS]
    with ExitStack() as stack:
        agent = stack.enter_context(serving(folder, unused_port(), env=env))
        for run, faults in (("healthy", []), ("sick", ["--fault", f"divergence:{ONSET}"])):
            (folder / run).mkdir()
            command = [*job, *faults]
            stack.enter_context(started(command, folder / run, {**env, "DFX_RUN": run}))
        yield agent


def agent_token(tmp_path_factory):
    return folder_token.read(str(tmp_path_factory.getbasetemp() / "health0" / "dir"))


@pytest.fixture(scope="module")
def sick(agent):
    """The row of the sick run when it was found."""

    def found():
        row = rows(agent).get("sick")
        verdict = row and divergence(row)
        assert not row or not row["signals"] or row["signals"]["step"] < ONSET + 60, verdict
        return row if verdict and verdict["state"] == "found" else None

    return until(found, "the collapse is found", 240)


def test_the_collapse_is_found_with_onsets_after_the_fault(sick):
    verdict, signals = divergence(sick), sick["signals"]
    assert signals["is_latched"]
    assert signals["latched_step"] > ONSET
    active = {row["symptom"]: row["onset_step"] for row in signals["symptoms"] if row["is_active"]}
    assert len(active) >= 3 or "reward" in active
    assert sum(step >= ONSET - 2 for step in active.values()) >= 2, active
    assert verdict["role"] == "trainer"
    assert any("its usual range is" in line for line in verdict["evidence"])
    assert sick["num_late_signals"] == 0


def test_metrics_and_history_say_the_same(agent, sick):
    latched = {labels["run"]: value for labels, value in samples(agent, "dfx_signal_latched")}
    assert latched == {"sick": 1, "healthy": 0}
    assert {"run": "sick", "kind": "divergence"}.items() <= next(
        labels for labels, _ in samples(agent, "dfx_verdict_active") if labels["run"] == "sick"
    ).items()
    history = agent.json("/api/v1/runs/sick/signals?steps=256")
    assert history["steps"] == sorted(set(history["steps"]))
    assert set(range(2, ONSET)) <= set(history["steps"]), "each step exactly once"
    assert not any(history["is_latched"][:ONSET])


def test_diagnose_finds_it(agent, sick, tmp_path):
    command = [sys.executable, "-m", "dfx_agent", "diagnose", "--url", agent.url, "--run", "sick"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "divergence (trainer): found: Training has been diverging since step" in done.stdout


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_signals_and_symptoms(agent, sick, open_page, artifacts, scheme):
    page = open_page(f"{agent.url}/?#run=sick", scheme=scheme)
    page.wait_for_selector("#health:not([hidden]) #signal-rows tr")
    poll(page, "document.querySelector('.signals path.band').getAttribute('d')")
    shown = {row.strip() for row in page.locator("#signal-rows th").all_inner_texts()}
    assert shown == {row["signal"].replace("_", " ") for row in sick["signals"]["signals"]}
    assert "baselines frozen since step" in page.inner_text("#health-note")
    assert re.search(r"Active symptoms: .+ since step \d+", page.text_content("#symptoms-say"))
    assert "Training has been diverging" in page.inner_text("#verdict-list")
    page.locator("#health").screenshot(path=artifacts / f"training_health_{scheme}.png")
    for width in (1100, 1280, 1400, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        scrolled = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('#health .scroll'))"
        assert page.evaluate(scrolled) == 0, f"columns are cut off at {width} px"


def test_the_same_steps_without_the_fault_find_nothing(agent):
    def row():
        row = rows(agent).get("healthy")
        verdict = row and divergence(row)
        assert not verdict or verdict["state"] != "found", verdict
        return row if row and row["signals"] and row["signals"]["step"] >= NUM_STEPS else None

    row = until(row, f"{NUM_STEPS} healthy steps", 240)
    assert divergence(row)["state"] == "clear"
    assert not any(agent.json("/api/v1/runs/healthy/signals?steps=256")["is_latched"])


def test_the_operator_resets_with_the_button(agent, sick, open_page, tmp_path_factory):
    page = open_page(f"{agent.url}/?#run=sick")
    page.wait_for_selector("#health:not([hidden])")
    page.click("#health-reset")
    assert rows(agent)["sick"]["signals"]["is_latched"], "it asks first"
    page.click("#health-reset")
    until(lambda: not rows(agent)["sick"]["signals"]["is_latched"], "the latch is open")
    url, token = f"{agent.url}/api/v1/runs/healthy/signals/reset", agent_token(tmp_path_factory)
    request = urllib.request.Request(url, b"", {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert (answer.status, json.loads(answer.read() or "null")) == (204, None)
