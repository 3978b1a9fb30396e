"""A gradient scaler that leaves out each update is told; one that does so now and then is not."""

from __future__ import annotations

import math

import pytest

from dfx_agent.catalogue.alerts.declared.stability import NO_UPDATE
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord, UpdateCounts
from dfx_agent.facts.seat import ProcessId
from dfx_agent.job.incidents.words import action_of
from dfx_agent.job.judging import JobJudge
from dfx_agent.judge.divergence.skipped_updates import TOO_MANY_IN_A_ROW, SkippedUpdates
from dfx_agent.snapshot.faults import Faults


class Rank:
    """What is told of one process; it is in step 7, and its newest record is of second 1050."""

    def __init__(self, label: str = "0") -> None:
        self.process = ProcessId("trainer", label, 1)
        self.seconds, self.num_made, self.num_left_out = 1050.0, 0, 0

    def reads(self, updates: SkippedUpdates, *, made: int = 0, left_out: int = 0) -> None:
        self.num_made += made
        self.num_left_out += left_out
        counts = UpdateCounts(self.process, 7, self.seconds, self.num_made, self.num_left_out)
        updates.observe([counts])


def test_gradients_that_no_scale_helps_are_found_since_the_first():
    rank, updates = Rank(), SkippedUpdates()
    rank.reads(updates, made=600)
    for second in range(TOO_MANY_IN_A_ROW):
        assert updates.verdict() is None
        rank.seconds = 1060.0 + second
        rank.reads(updates, left_out=1)
    verdict = updates.verdict()
    assert (verdict.kind, verdict.state, verdict.ranks) == ("divergence", "found", ("0",))
    assert (verdict.since_seconds, verdict.step) == (1060.0, 7)
    assert verdict.summary == (
        "The gradient scaler of rank 0 has skipped the last 40 updates: gradients are NaN or "
        "infinite at every scale. Nothing is learned."
    )
    assert verdict.evidence == ("rank 0: 600 updates made, 40 left out, the last 40 in a row",)
    assert action_of("divergence", NO_UPDATE, "").startswith("Stop, and restart")
    rank.reads(updates, made=1)
    assert updates.verdict() is None


@pytest.mark.parametrize("left_out", [1, 24, TOO_MANY_IN_A_ROW - 1])
def test_a_scaler_that_looks_for_its_scale_is_no_finding(left_out):
    rank, updates = Rank(), SkippedUpdates()
    for _ in range(10):
        rank.reads(updates, left_out=left_out)
        assert updates.verdict() is None
        rank.reads(updates, made=25)


def test_what_one_reading_brings_of_both_is_no_row():
    rank, updates = Rank(), SkippedUpdates()
    for _ in range(5):
        rank.reads(updates, made=1000, left_out=TOO_MANY_IN_A_ROW)
        assert updates.verdict() is None


def test_it_is_the_runs_verdict_and_a_dead_rank_is_forgotten():
    job, rank = JobJudge("r", Faults()), Rank()
    rank.reads(job.skipped_updates, left_out=TOO_MANY_IN_A_ROW)
    assert job.divergence().cause == NO_UPDATE
    job.skipped_updates.observe(())
    assert job.skipped_updates.verdict() is None


def test_a_process_in_its_place_starts_from_nothing():
    rank, updates = Rank(), SkippedUpdates()
    rank.reads(updates, left_out=TOO_MANY_IN_A_ROW - 1)
    rank.process, rank.num_left_out = rank.process._replace(created_ns=2), 0
    rank.reads(updates, left_out=1)
    assert updates.verdict() is None


def test_what_a_gradient_scaler_skipped_is_forgiven_after_the_run_as_well():
    job, rank = JobJudge("r", Faults()), ProcessId("trainer", "0", 7)
    overflow = ScalarRecord("torch/grad_norm", math.inf, 3, 10**9, 3)
    job.health.add(ReportedScalars(rank, "torch", (overflow,), 0))
    assert job.divergence().state == "found", "no scaler"
    job.close({rank: 4}, [UpdateCounts(rank, 3, 1.0, 9.0, 1.0)], (), is_whole=True)
    assert job.divergence().state != "found"
    job.close({}, (), (), is_whole=True)
    assert job.divergence().state != "found", "its ranks have ended"
