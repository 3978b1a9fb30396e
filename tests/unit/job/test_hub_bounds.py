"""Jobs, nodes, roles and processes beyond the bounds of a hub are refused, counted and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.catalogue.native import time_series
from dfx_agent.facts.bounds import MAX_PROCESSES, MAX_ROLES
from dfx_agent.facts.document import dumped
from dfx_agent.facts.layout import NO_LAYOUT, Layout, RankPosition
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.hub import reporting_nodes
from dfx_agent.job import folds as module
from dfx_agent.job.folds import JobFolds
from dfx_agent.job.time_series import JobTimeSeries

HOUR_NS = 3600 * 10**9
FACTS = RunFacts(run="r", node="node-a", now_seconds=1.0, agent="a", number=1)


def receive(folds, at_ns=0, **more):
    return folds.receive(dumped(replace(FACTS, **more)), "node-a", at_ns, at_ns / 1e9)


def problem(folds, at_ns=0):
    (found,) = folds.snapshot(at_ns, at_ns / 1e9).agent.problems
    return found.path, found.message


def test_a_job_more_is_refused_and_named(monkeypatch):
    monkeypatch.setattr(module, "MAX_JOBS", 2)
    folds = JobFolds()
    receive(folds, run="a")
    receive(folds, run="b")
    with pytest.raises(ValueError, match="more than 2 jobs report to this hub"):
        receive(folds, run="c")
    receive(folds, run="a", number=2)
    node, message = problem(folds)
    assert node == "node-a"
    assert message.endswith("more than 2 jobs report to this hub: start another one")
    receive(folds, 2 * HOUR_NS, run="a", number=3)
    folds.snapshot(2 * HOUR_NS, 7200.0)
    assert receive(folds, 2 * HOUR_NS, run="c")  # the other one was forgotten


def test_a_node_more_is_refused_until_another_one_is_forgotten(monkeypatch):
    monkeypatch.setattr(reporting_nodes, "MAX_NODES", 2)
    folds = JobFolds()
    for node in ("node-a", "node-b"):
        receive(folds, node=node)
    with pytest.raises(ValueError, match="more than 2 nodes report to this hub"):
        receive(folds, node="node-c")
    folds.snapshot(2 * HOUR_NS, 7200.0)
    assert receive(folds, 2 * HOUR_NS, node="node-c")


def test_refusals_under_many_names_share_their_counts(monkeypatch):
    monkeypatch.setattr(reporting_nodes, "MAX_NODES", 2)
    folds = JobFolds()
    for number in range(20):
        with pytest.raises(ValueError, match="it is not JSON"):
            folds.receive(b"", f"node-{number}")
    assert len(folds.nodes.counts) == 5
    assert folds.nodes.counts["other nodes"].num_refused == 16


def test_processes_that_several_documents_add_up_to_are_bounded():
    folds = JobFolds()
    half = MAX_PROCESSES // 2
    for number in (1, 2):
        seats = tuple(
            Seat(role="trainer", label=str(rank), created_ns=number) for rank in range(half)
        )
        receive(folds, number=number, is_full=number == 1, seats=seats)
    one_more = (Seat(role="trainer", label="0", created_ns=3),)
    with pytest.raises(ValueError, match="more than 4,096 processes of one run on one node"):
        receive(folds, number=3, is_full=False, seats=one_more)
    left = (seats[0].id,)
    receive(folds, number=4, is_full=False, seats=one_more, left=left)


@pytest.mark.parametrize("part", ["seats", "layouts", "steps"])
def test_roles_that_several_documents_add_up_to_are_bounded(part):
    folds = JobFolds()
    receive(folds)
    for number in range(MAX_ROLES):
        receive(folds, number=number + 2, is_full=False, **of_role(part, f"role-{number}"))
    with pytest.raises(ValueError, match="more than 64 roles"):
        receive(folds, number=100, is_full=False, **of_role(part, "another"))


def of_role(part, role):
    if part == "seats":
        return {"seats": (Seat(role=role, label="0", created_ns=1),)}
    layout = Layout(places={"0": RankPosition(rank=1)}) if part == "layouts" else NO_LAYOUT
    return {"steps": (RoleSteps(role, (), None, 1, 1, layout),)}


def test_names_of_numbers_beyond_the_bound_are_counted(monkeypatch):
    monkeypatch.setattr(time_series, "MAX_KEYS", 2)
    curves = JobTimeSeries(8)
    numbers = tuple(ScalarRecord(f"loss/{number}", 1.0, 1, 1) for number in range(5))
    curves.add([(ReportedScalars(ProcessId("trainer", "0", 1), "verl", numbers, 0), 0)])
    assert [row.key for row in curves.rows("verl")] == ["loss/0", "loss/1"]
    assert curves.num_stale == 3
