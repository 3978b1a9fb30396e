"""Whether batches arrive as they left, concluded from crossings made by hand: no process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dfx_agent.facts.ledger import Crossing, LedgerNews, Progress
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.data.ledger import RunLedger
from dfx_agent.snapshot import Verdict

NUM_ROWS = 8.0
Changes = Mapping[tuple[str, str], float]


def fields(rank: int, step: int, changes: Changes | None = None) -> dict[tuple[str, str], float]:
    """As a guest tells them of 8 samples with ids, rewards and a mask."""
    ids = float(1000 * step + rank)
    return {
        ("num_rows", ""): NUM_ROWS,
        ("schema", ""): 7.0,
        ("shapes", ""): 11.0,
        ("multiset", "sample_id"): ids,
        ("aligned", "rewards"): ids + 0.5,
        ("values", "rewards"): ids + 0.25,
        ("mask_sum", "response_mask"): 52.0,
        ("mask_size", "response_mask"): 64.0,
        **(changes or {}),
    }


class Job:
    """Ranks that show every batch at two boundaries; one reading after each step."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.ledger = RunLedger()
        self.ranks = [ProcessId("actor", str(rank), 1) for rank in range(num_ranks)]
        self.gone: set[ProcessId] = set()
        self.num_lost = 0
        self.step = 0

    def passes(self, num_steps: int = 1, changes: Changes | None = None) -> None:
        """``changes`` are of rank 0 at the second boundary."""
        for _ in range(num_steps):
            self.step += 1
            for number, rank in enumerate(self.ranks):
                if rank not in self.gone:
                    self.ledger.add(self.news(number, rank, changes if number == 0 else None))
            self.settle()

    def news(self, number: int, rank: ProcessId, changes: Changes | None) -> LedgerNews:
        at = self.step * 10**9
        batches = (
            Crossing("rollout", self.step, at, fields(number, self.step)),
            Crossing("update", self.step, at + 1, fields(number, self.step, changes)),
        )
        return LedgerNews(rank, self.num_lost, (self.step, self.step), batches)

    def settle(self) -> None:
        progress = [Progress(rank, self.step, rank not in self.gone) for rank in self.ranks]
        self.ledger.settle(progress, is_whole=True)

    @property
    def verdict(self) -> Verdict:
        verdict = self.ledger.verdict()
        assert verdict is not None
        return verdict


def test_a_sound_job_is_clear():
    job = Job()
    job.passes(12)
    assert (job.verdict.state, job.verdict.step) == ("clear", 10)
    assert "rollout to update" in job.verdict.summary
    (rollout, update) = job.ledger.rows("actor", "1")
    assert (rollout.boundary, rollout.num_samples, rollout.num_crossings) == ("rollout", 8, 12)
    assert update.mask_ratio == pytest.approx(52 / 64)


def test_who_shows_no_batch_is_not_judged():
    ledger = RunLedger()
    ledger.settle([], is_whole=True)
    assert (ledger.verdict(), ledger.state()) == (None, None)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_before_a_step_was_compared_nothing_is_clear(num_steps):
    job = Job()
    job.passes(num_steps)
    assert (job.verdict.state, job.verdict.summary) == (
        "insufficient evidence", "No step has been compared yet.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({("multiset", "sample_id"): 3.0}, "ids"),
        ({("aligned", "rewards"): 1.0}, "moved"),
        ({("mask_sum", "response_mask"): 51.0}, "mask"),
        ({("shapes", ""): 12.0}, "shapes"),
        ({("num_rows", ""): 6.0}, "samples"),
        ({("num_nonfinite", "rewards"): 2.0}, "nonfinite"),
        ({("num_misaligned", "rewards"): 1.0}, "lengths"),
    ],
)
def test_what_goes_wrong_between_two_boundaries_is_found(changes, cause):
    job = Job()
    job.passes(6)
    assert job.verdict.state == "clear"
    job.passes(1, changes)
    job.passes(2)
    assert (job.verdict.state, job.verdict.cause, job.verdict.step) == ("found", cause, 7)
    assert job.verdict.stage == "update"
    job.passes(10)
    assert job.verdict.state == "clear", "it is over"


def test_a_filter_from_the_start_is_shown_and_no_finding():
    job = Job()
    job.passes(12, {("num_rows", ""): 6.0})
    assert job.verdict.state == "insufficient evidence"
    assert "14 samples instead of 16" in job.verdict.summary


def test_steps_in_which_records_were_lost_are_skipped_and_counted():
    job = Job()
    job.passes(6)
    job.num_lost = 5
    job.passes(1, {("multiset", "sample_id"): 3.0})
    job.passes(4)
    assert job.verdict.state == "clear"
    assert any(line.startswith("not compared: ") for line in job.verdict.evidence)


def test_a_step_in_which_a_rank_died_is_not_compared():
    job = Job()
    job.passes(6)
    job.gone = {job.ranks[1]}
    job.passes(4)
    assert job.verdict.state == "clear"
    assert {row.count for row in job.ledger.state().mismatches} == set()


def test_a_process_in_the_place_of_another_begins_in_a_step_that_is_not_whole():
    job = Job()
    job.passes(6)
    job.ranks[0] = job.ranks[0]._replace(created_ns=2)
    job.passes(1, {("multiset", "sample_id"): 3.0})
    job.passes(2)
    assert job.verdict.state == "clear"
    job.passes(3)
    job.passes(1, {("multiset", "sample_id"): 3.0})
    job.passes(2)
    assert job.verdict.state == "found"


def test_incomplete_batches_are_counted_and_their_step_not_compared():
    job = Job()
    job.passes(6)
    job.ledger.add(LedgerNews(job.ranks[0], 0, (6,), given_up=(6, None)))
    job.passes(1)
    num_judged = job.ledger.num_judged
    job.passes(1)
    assert (job.ledger.num_incomplete, job.ledger.num_judged) == (2, num_judged)


def test_a_batch_outside_any_step_is_judged_by_itself():
    job = Job(1)
    shown = {("num_rows", ""): 2.0, ("num_nonfinite", "rewards"): 1.0}
    crossing = Crossing("rollout", None, 1, shown)
    job.ledger.add(LedgerNews(job.ranks[0], 0, (None,), (crossing,)))
    assert (job.verdict.state, job.verdict.cause, job.verdict.step) == ("found", "nonfinite", None)


def test_a_step_that_any_rank_left_out_is_not_compared():
    job = Job()
    job.passes(4)
    judged, skipped, job.step = job.ledger.num_judged, job.ledger.num_skipped, job.step + 1
    left_out = {("is_left_out", ""): 1.0}
    for number, rank in enumerate(job.ranks):
        news = job.news(number, rank, {("aligned", "rewards"): 0.0})
        if number == 1:
            batches = [Crossing(c.boundary, c.step, c.time_ns, left_out) for c in news.completed]
            news = replace(news, completed=tuple(batches))
        job.ledger.add(news)
    job.settle()
    job.passes(4)
    state, verdict = job.ledger.state(), job.ledger.verdict()
    assert (state.num_judged_steps, state.num_skipped_steps) == (judged + 4, skipped)
    assert (verdict.state, state.mismatches) == ("clear", ())
    row = job.ledger.rows("actor", "1")[0]
    assert (row.num_crossings, row.num_left_out, row.num_samples) == (9, 1, NUM_ROWS)


def test_totals_of_a_released_rank_stay():
    job = Job()
    job.passes(3)
    job.ledger.remove_process(job.ranks[0], (3,))
    assert job.ledger.rows("actor", "0") == ()
    assert job.ledger.num_incomplete == 1
    job.passes(1)
    assert job.ledger.rows("actor", "0")[0].num_crossings == 4


def test_samples_of_a_step_are_counted_at_its_first_boundary_and_replicas_once():
    job = Job()
    job.passes(6)
    state = job.ledger.state()
    assert (state.step, state.num_samples) == (4, 2 * int(NUM_ROWS))
    replicas = Job()
    replicas.news = lambda _number, rank, changes: Job.news(replicas, 0, rank, changes)
    replicas.passes(6)
    assert replicas.ledger.state().num_samples == int(NUM_ROWS)
