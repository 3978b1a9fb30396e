"""One strange process, run or verdict costs nothing but itself, and nothing blind says "clear"."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import httpx
import pytest
from guard_scene import Job, judge_everybody, raising, read

from dfx_agent.agent import render as view
from dfx_agent.agent import watchdog
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.commands.diagnose import diagnosis_text
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.facts.steps import SchedTimes
from dfx_agent.judge.hang import judge as hangs
from dfx_agent.judge.straggler import judge as stragglers
from dfx_agent.node.process import Process
from dfx_agent.node.tracks import Tracks
from dfx_agent.snapshot import RunRow, Snapshot
from dfx_agent.snapshot.document import Document
from dfx_agent.snapshot.faults import Faults
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server

DEADLINE_SECONDS = 120.0


@pytest.fixture
def jobs(dfx_dir) -> list[Job]:
    return [Job(dfx_dir, run, rank) for run in ("good", "bad") for rank in (0, 1)]


@pytest.fixture
def agent(dfx_dir) -> Agent:
    return Agent(Config(str(dfx_dir)))


def states(run: RunRow) -> dict[str, str]:
    return {verdict.kind: verdict.state for verdict in run.verdicts}


def only_of(run: str, function: Callable, of: Callable[[object], str]) -> Callable:
    """``function``, that raises for one run."""

    def other(self: object, *args: object, **kwargs: object) -> object:
        return raising() if of(self) == run else function(self, *args, **kwargs)

    return other


def test_a_process_that_cannot_be_read_costs_itself_and_nothing_is_clear_there(
    agent, jobs, monkeypatch
):
    poll = only_of("bad", Process.poll, lambda p: p.registered_as.run if p.label == "1" else "")
    monkeypatch.setattr(Process, "poll", poll)
    runs = read(agent, jobs)
    assert states(runs["good"])["hang"] == "clear"
    assert not runs["good"].faults
    assert runs["bad"].ranks[0].step == runs["good"].ranks[0].step
    (fault,) = runs["bad"].faults
    assert (fault.part, fault.what, fault.is_blind) == ("reading", "rank 1 (trainer)", True)
    assert fault.num_times == 4
    assert "ValueError at guard_scene.py" in fault.message
    assert "clear" not in states(runs["bad"]).values()
    snapshot = agent.snapshot()
    assert snapshot.agent.blind is not None
    assert "rank 1 (trainer) of run bad" in snapshot.agent.blind.reason
    assert snapshot.agent.num_faults == {"reading": 4}


@pytest.mark.parametrize(
    ("kind", "place", "name"),
    [
        ("hang", hangs, "hang_verdict"),
        ("crash", hangs, "crash_verdict"),
        ("straggler", stragglers, "straggler_verdict"),
        ("hang", Tracks, "observe"),
    ],
)
def test_a_verdict_that_cannot_be_judged_says_so_and_the_others_stand(
    agent, jobs, monkeypatch, kind, place, name
):
    monkeypatch.setattr(place, name, raising)
    judge_everybody(monkeypatch)
    run = read(agent, jobs)["good"]
    (verdict,) = (v for v in run.verdicts if v.kind == kind)
    assert verdict.state == "insufficient evidence"
    assert "could not be judged: ValueError at guard_scene.py" in verdict.summary
    assert {"hang", "crash", "straggler"} <= states(run).keys()
    if name != "observe":
        assert all(v.state == "clear" for v in run.verdicts if v.kind in {"hang", "crash"} - {kind})
        assert run.judged_seconds["crash" if kind == "hang" else "hang"] > time.time() - 60
    assert any(fault.is_blind for fault in run.faults)
    monkeypatch.undo()
    again = read(agent, jobs, 1)["good"]
    assert not again.faults
    assert agent.snapshot().agent.blind is None


@pytest.mark.parametrize("name", ["health", "ledger", "collectives"])
def test_a_damaged_state_of_one_judge_spares_the_others(agent, jobs, monkeypatch, name):
    method = {"health": "close", "ledger": "settle", "collectives": "settle"}[name]
    read(agent, jobs, 1)
    fold = agent._runs["bad"]
    judged = fold.collectives if name == "collectives" else getattr(fold.judge, name)
    monkeypatch.setattr(judged, method, raising)
    runs = read(agent, jobs)
    assert states(runs["bad"])["hang"] == "clear"
    assert any(fault.part == "judgement" for fault in runs["bad"].faults)
    assert not runs["good"].faults
    if name == "collectives":
        (straggler,) = (v for v in runs["bad"].verdicts if v.kind == "straggler")
        assert straggler.summary.startswith("This could not be judged")


def test_a_run_that_cannot_be_shown_is_shown_as_that(agent, jobs, monkeypatch):
    row = view.run_row
    monkeypatch.setattr(
        view, "run_row", lambda fold, *entry: raising() if fold.run == "bad" else row(fold, *entry)
    )
    runs = read(agent, jobs)
    assert runs["good"].ranks
    assert [fault.part for fault in runs["bad"].faults] == ["rendering"]


def test_who_is_blind_is_not_ready_and_diagnose_says_so(agent, jobs, dfx_dir, monkeypatch):
    app = create_app(agent, PrometheusExporter(agent).render)
    server = Server(app, Listener("127.0.0.1", 0))
    server.start()
    try:
        read(agent, jobs)
        assert httpx.get(server.url + "/readyz", timeout=60).status_code == 200
        monkeypatch.setattr(hangs, "crash_verdict", raising)
        judge_everybody(monkeypatch)
        read(agent, jobs)
        answer = httpx.get(server.url + "/readyz", timeout=60)
        document = httpx.get(server.url + "/api/v1/snapshot", timeout=60).json()
    finally:
        server.stop()
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("blind since ")
    assert "crash (trainer) of run good" in answer.json()["detail"]
    seen = Observed("an agent", str(dfx_dir), Document(Snapshot).loaded(document))
    assert diagnosis_text.exit_code(seen, None) == 2
    assert diagnosis_text.text(seen, None).startswith("blind since ")


def test_one_run_whose_alerts_fail_costs_the_others_nothing(agent, jobs, monkeypatch):
    read(agent, jobs)
    result = []
    alerts = LiveAlerts(
        agent, lambda run: raising() if run.run == "bad" else result.append(run) or {}, ()
    )
    alerts.evaluate(agent.snapshot())
    assert [run.run for run in result] == ["good"]
    assert alerts.alerts().num_errors == 1
    assert alerts.alerts().num_evaluations == 1


def test_a_fault_is_logged_with_its_traceback_once(agent, jobs, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("dfx_agent"), "propagate", True)
    monkeypatch.setattr(hangs, "crash_verdict", raising)
    judge_everybody(monkeypatch)
    read(agent, jobs, 5)
    # pytest 9.2 also listens to loggers that do not propagate, and so gets a record twice
    records = {id(record): record for record in caplog.records}.values()
    errors = [record for record in records if record.levelno >= logging.ERROR]
    assert len(errors) == 2  # one for each run
    assert all("Traceback (most recent call last)" in record.getMessage() for record in errors)


def test_a_reading_that_stands_blinds_and_blocks_nobody(agent, jobs, monkeypatch):
    monkeypatch.setattr(watchdog, "SLOWEST_SECONDS", 0.0)
    monkeypatch.setattr(watchdog, "_LONG_READING_SECONDS", 0.0)
    agent._watchdog.limit_seconds = 0.5
    assert states(read(agent, jobs)["good"])["hang"] == "clear"
    may_go_on, poll = threading.Event(), Process.poll

    def standing(self: Process, **kwargs: bool) -> object:
        may_go_on.wait(DEADLINE_SECONDS)
        return poll(self, **kwargs)

    monkeypatch.setattr(Process, "poll", standing)
    agent.start()
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while agent.snapshot().agent.blind is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        snapshot = agent.snapshot()
        assert "does not end" in snapshot.agent.blind.reason
        good = next(run for run in snapshot.runs if run.run == "good")
        assert "clear" not in states(good).values()
        assert good.standing.state == "insufficient evidence"
        assert any(v.summary.startswith("Nothing has been judged since ") for v in good.verdicts)
        may_go_on.set()
        while agent.snapshot().agent.blind is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        may_go_on.set()
        agent.stop()


def test_a_reader_that_gets_no_cpu_says_so_and_what_to_do(monkeypatch, caplog):
    times = iter((SchedTimes(1, 0), SchedTimes(1, 3_600_000_000_000)))
    monkeypatch.setattr(watchdog, "thread_times", lambda *_: next(times))
    dog = watchdog.Watchdog(Faults(), 0.25)
    dog.follow(threading.current_thread())
    dog.begin()
    dog.limit_seconds = -1.0
    blind = dog.stands()
    assert blind is not None
    assert "the agent gets too little CPU: it waited for one during 100 % of" in blind.reason
    assert f"renice -n -5 -p {os.getpid()}" in blind.reason
    assert "File" not in caplog.text  # its code is not the reason
