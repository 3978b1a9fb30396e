"""Blindness as series, as an alert and as JSON: of the run that it belongs to, and of no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from guard_scene import Job, judge_everybody, raising, read
from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.catalogue.alerts.declared.observation import AGENT_BLIND
from dfx_agent.commands import build_parser, diagnose
from dfx_agent.commands.diagnose import diagnosis_text
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter, run_samples
from dfx_agent.node.process import Process
from dfx_agent.snapshot import FaultRow, Snapshot, Standing, Verdict
from dfx_agent.snapshot.faults import sighted


@pytest.fixture
def jobs(dfx_dir) -> list[Job]:
    return [Job(dfx_dir, run, rank) for run in ("good", "bad") for rank in (0, 1)]


@pytest.fixture
def agent(dfx_dir) -> Agent:
    return Agent(Config(str(dfx_dir)))


def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no process of the run "bad" can be read."""
    poll = Process.poll

    def other(process: Process, **kwargs: bool) -> object:
        return raising() if process.registered_as.run == "bad" else poll(process, **kwargs)

    monkeypatch.setattr(Process, "poll", other)


def series(agent: Agent) -> dict[tuple[str, ...], float]:
    """(sample name, label values ...) -> value, of what the agent says of its sight."""
    body, _ = PrometheusExporter(agent).render(None)
    return {
        (sample.name.removeprefix("dfx_agent_"), *_told(sample.labels)): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name.startswith("dfx_agent_")
    }


def asked(*words: str) -> int:
    """The exit code of ``dfx-agent diagnose``."""
    return diagnose.execute(build_parser("diagnose").parse_args(["diagnose", *words]))


def _told(labels: dict[str, str]) -> Iterator[str]:
    return (value for name, value in labels.items() if name != "node")


def test_before_the_first_poll_no_age_is_exported_but_every_counter(agent):
    found = series(agent)
    assert ("read_age_seconds",) not in found
    assert found["blind",] == 0
    assert {found["faults_total", part] for part in ("folder", "reading", "judgement")} == {0}


def test_a_run_that_cannot_be_read_is_blind_and_the_other_is_not(agent, jobs, monkeypatch):
    read(agent, jobs)
    before = series(agent)
    assert (before["blind",], before["run_blind", "bad"], before["faults_total", "reading"]) == (
        0, 0, 0,
    )  # fmt: skip
    strange(monkeypatch)
    read(agent, jobs)
    after = series(agent)
    assert (after["blind",], after["run_blind", "bad"], after["run_blind", "good"]) == (1, 1, 0)
    assert after["faults_total", "reading"] == 2 * 4  # two ranks, four readings
    monkeypatch.undo()
    read(agent, jobs, 1)
    again = series(agent)
    assert (again["blind",], again["run_blind", "bad"]) == (0, 0)
    assert again["faults_total", "reading"] == 2 * 4


def test_the_age_of_a_judgement_grows_while_its_judge_fails(agent, jobs, monkeypatch):
    read(agent, jobs)
    clock = [1e9]
    for module in ("dfx_agent.snapshot.faults", "dfx_agent.exporters.prometheus.exporter"):
        monkeypatch.setattr(f"{module}.time.time", lambda: clock[0])
    read(agent, jobs)
    assert series(agent)["judged_age_seconds", "bad"] == 0
    monkeypatch.setattr("dfx_agent.judge.hang.judge.crash_verdict", raising)
    judge_everybody(monkeypatch)
    clock[0] += 50
    read(agent, jobs)
    assert series(agent)["judged_age_seconds", "bad"] == 50


def test_a_folder_that_is_not_read_blinds_every_run(agent, jobs, monkeypatch):
    read(agent, jobs)
    monkeypatch.setattr(agent, "_adopt_new", raising)
    read(agent, jobs)
    found = series(agent)
    assert (found["run_blind", "bad"], found["run_blind", "good"]) == (1, 1)


def test_the_agent_pages_for_the_blind_run_alone(agent, jobs, monkeypatch):
    alerts = LiveAlerts(
        agent,
        lambda run: run_samples(run, frozenset({"dfx_agent_run_blind"})),
        [replace(AGENT_BLIND, for_seconds=0)],
    )
    read(agent, jobs)
    alerts.evaluate(agent.snapshot())
    assert alerts.alerts().alerts == ()
    strange(monkeypatch)
    read(agent, jobs)
    alerts.evaluate(agent.snapshot())
    assert [(row.alert, row.run) for row in alerts.alerts().alerts] == [("DfxAgentBlind", "bad")]


@pytest.mark.parametrize(
    ("words", "code"), [((), 2), (("--run", "bad"), 2), (("--run", "good"), 0)]
)
def test_diagnose_asked_for_one_run_is_blind_for_that_alone(
    agent, jobs, monkeypatch, capsys, words, code
):
    strange(monkeypatch)
    read(agent, jobs)
    seen = Observed("an agent", "", agent.snapshot())
    monkeypatch.setattr("dfx_agent.commands.ps.observed._asked", lambda *_: seen)
    assert asked("--json", *words) == code
    result = json.loads(capsys.readouterr().out)
    if code:
        assert "rank 0 (trainer) of run bad: ValueError" in result["blind"]["reason"]
    else:
        assert result["blind"] is None


def test_json_has_no_number_that_json_does_not_know(agent, jobs, monkeypatch, capsys):
    read(agent, jobs)
    snapshot = agent.snapshot()
    verdict = Verdict("straggler", "clear", "trainer", "none", lost_seconds=float("nan"))
    runs = tuple(replace(run, verdicts=(verdict,)) for run in snapshot.runs)
    seen = Observed("an agent", "", Snapshot(0.0, snapshot.agent, runs))
    monkeypatch.setattr("dfx_agent.commands.ps.observed._asked", lambda *_: seen)
    assert asked("--json") == 0
    out = capsys.readouterr().out
    result = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert result["runs"][0]["verdicts"][0]["lost_seconds"] == "NaN", "null is what nobody told"


@pytest.mark.parametrize("part", ["folder", "reading", "judgement", "rendering", "keeping"])
def test_a_run_that_is_not_wholly_seen_is_not_green(part):
    clear = Standing("clear", "nothing found: hang")
    row = FaultRow(part, "good", "rank 1", "ValueError", 0.0, 1, is_blind=False)
    assert sighted(clear, ()) == clear
    seen = sighted(clear, (row,))
    assert seen.state == ("clear" if part == "keeping" else "insufficient evidence")
    found = Standing("found", "rank 1 is stuck")
    assert sighted(found, (row,)) == found


def test_words_lead_with_what_is_blind(agent, jobs, monkeypatch):
    strange(monkeypatch)
    read(agent, jobs)
    seen = Observed("an agent", "", agent.snapshot())
    assert diagnosis_text.text(seen, None).startswith("blind since ")
