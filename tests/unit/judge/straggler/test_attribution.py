"""The straggler verdict on simulated steps: right when one rank is slow, silent when none is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import pytest

from bench.simulated_steps import (
    ROLLOUT,
    UPDATE,
    Job,
    same_tokens,
    slower,
)
from dfx_agent.facts.steps import IDLE, TRANSFER, Part, Step
from dfx_agent.judge.straggler.comparable_ranks import Division
from dfx_agent.judge.straggler.excess import num_on_level, spreads
from dfx_agent.judge.straggler.judge import straggler_verdict
from dfx_agent.snapshot import Verdict


def verdicts(steps: Sequence[Step]) -> list[Verdict]:
    """After each step, from as many as the agent keeps, each told the one before."""
    found: list[Verdict] = []
    for n in range(1, len(steps) + 1):
        named = found[-1].ranks if found and found[-1].state == "found" else ()
        found.append(straggler_verdict("t", steps[max(0, n - 32) : n], 1.0, named))
    return found


def after(num_steps: int, job: Job) -> Verdict:
    return straggler_verdict("t", job.steps(num_steps)[-32:], 1.0)


@pytest.mark.parametrize("seed", range(25))
def test_a_rank_20_percent_slower_is_named_within_5_steps_with_cause_and_amount(seed):
    """1 % noise of whole steps; the amount within 10 % of what was injected."""
    rank = seed % 4
    job = Job(jitter=0.01, slow=slower(rank, 1.2), tokens=same_tokens, seed=seed)
    verdict = after(5, job)
    assert (verdict.state, verdict.ranks) == ("found", (str(rank),))
    assert (verdict.cause, verdict.stage) == ("slower at equal tokens", "rollout")
    assert verdict.lost_seconds == pytest.approx(sorted(job.injected)[2], rel=0.1)


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_becomes_slow_is_named_within_5_steps_and_cleared_when_it_is_over(seed):
    job = Job(slow=slower(2, 1.2, since=41, until=60), tokens=same_tokens, seed=seed)
    found = [v.state == "found" for v in verdicts(job.steps(80))]
    assert not any(found[:42])
    assert all(found[44:60])
    assert not any(found[64:])


@pytest.mark.parametrize("seed", range(10))
def test_steps_before_a_rank_became_slow_do_not_make_its_amount_smaller(seed):
    """Until the longest window lies behind the change; 2 % noise."""
    job = Job(jitter=0.02, slow=slower(2, 1.2, since=41), tokens=same_tokens, seed=seed)
    reported = verdicts(job.steps(64))[46:]
    injected = median(job.injected[-24:])
    errors = [abs((verdict.lost_seconds or 0.0) / injected - 1) for verdict in reported]
    assert median(errors) < 0.1
    assert max(errors) < 0.2


@pytest.mark.parametrize(
    ("row", "num"),
    [
        ([0.0] * 8, 8),
        ([0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0], 4),
        ([9.0, 9.0, 9.0, 0.0, 0.0, 0.0], 3),
        ([0.0, 0.0, 0.0, 0.0, 9.0, 9.0], 3),  # two steps alone are no level
        ([1.0, -1.0, 1.0, 2.0, 0.0, 2.0], 6),
    ],
)
def test_one_level_is_what_chance_does_not_part(row, num):
    assert num_on_level(row, sigma=1.0) == num


def test_a_few_better_steps_do_not_end_a_verdict():
    """With 9 % noise the newest steps alone are not always enough."""
    steps = Job(jitter=0.09, slow=slower(2, 1.2), tokens=same_tokens, seed=5).steps(80)
    alone = [straggler_verdict("t", steps[max(0, n - 32) : n], 1.0).state for n in range(20, 81)]
    assert set(alone) != {"found"}
    assert {v.state for v in verdicts(steps)[20:]} == {"found"}


@pytest.mark.parametrize(("jitter", "num_steps"), [(0.02, 5), (0.04, 10), (0.08, 20)])
def test_with_more_noise_it_takes_more_steps(jitter, num_steps):
    named = 0
    for seed in range(40):
        job = Job(jitter=jitter, outlier_ratio=0.01, slow=slower(1, 1.2), seed=seed)
        verdict = after(num_steps, job)
        named += (verdict.state, verdict.ranks) == ("found", ("1",))
        assert verdict.state != "found" or verdict.ranks == ("1",)
    assert named >= 30


def test_processor_time_shows_it_where_the_host_gives_the_processor_away():
    """By their wall time these ranks differ by 12 % of a step, step after step."""
    named = lost = without = 0
    for seed in range(40):
        job = Job(stalls=0.2, slow=slower(1, 1.2), tokens=same_tokens, seed=seed)
        steps = job.steps(5)
        verdict = straggler_verdict("t", steps, 1.0)
        assert verdict.ranks in {("1",), ()}
        named += verdict.state == "found"
        lost += verdict.lost_seconds == pytest.approx(sorted(job.injected)[2], rel=0.1)
        untold = [_without_busy(step) for step in steps]
        without += straggler_verdict("t", untold, 1.0).state == "found"
    assert without <= 4
    assert named >= 38
    assert lost >= 32


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_500_healthy_steps_of_stalls_give_no_verdict(num_ranks):
    job = Job(num_ranks, stalls=0.2, outlier_ratio=0.01, tokens=same_tokens, seed=num_ranks)
    assert {verdict.state for verdict in verdicts(job.steps(500))} <= {
        "clear",
        "insufficient evidence",
    }


def test_a_thread_that_spins_while_it_waits_hides_no_slow_device():
    steps = [_spinning(step) for step in Job(slow=slower(2, 1.3), tokens=same_tokens).steps(10)]
    verdict = straggler_verdict("t", steps, 1.0)
    assert (verdict.ranks, verdict.cause) == (("2",), "slower at equal tokens")


def _without_busy(step: Step) -> Step:
    ranks = {rank: replace(entry, busy_seconds=None) for rank, entry in step.ranks.items()}
    return replace(step, ranks=ranks)


def _spinning(step: Step) -> Step:
    ranks = {
        rank: replace(entry, busy_seconds=entry.wall_seconds) for rank, entry in step.ranks.items()
    }
    return replace(step, ranks=ranks)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("jitter", [0.05, 0.1])
@pytest.mark.parametrize("tokens", [None, same_tokens], ids=["untold", "tokens"])
def test_500_healthy_steps_give_no_verdict(num_ranks, jitter, tokens):
    job = Job(num_ranks, jitter, outlier_ratio=0.01, tokens=tokens, seed=num_ranks)
    assert [v for v in verdicts(job.steps(500)) if v.state == "found"] == []


def test_healthy_steps_are_clear_with_what_could_have_been_seen():
    verdict = after(20, Job(tokens=same_tokens))
    assert verdict.state == "clear"
    assert "5 % of a step" in verdict.summary
    (line,) = verdict.evidence
    assert "of 20 steps" in line


def test_steps_that_differ_too_much_are_insufficient_evidence():
    verdict = after(5, Job(num_ranks=2, jitter=0.4, seed=3))
    assert verdict.state == "insufficient evidence"
    assert "is not visible" in verdict.summary


def _varying(rng: random.Random, rank: int) -> float:
    return 1000 * rng.lognormvariate(0, 0.2)


def _found(told: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in told if verdict.state == "found"]


def _told_otherwise(step: Step, rng: random.Random) -> Step:
    ranks = {
        rank: replace(
            entry, tokens={"prompt": _varying(rng, 0)}, num_forward_tokens=entry.num_tokens
        )
        for rank, entry in step.ranks.items()
    }
    return replace(step, ranks=ranks)


def _without_padding(step: Step) -> Step:
    ranks = {rank: replace(entry, num_forward_tokens=None) for rank, entry in step.ranks.items()}
    return replace(step, ranks=ranks)


class TestTokens:
    """Work that goes with tokens is no fault of the rank."""

    @pytest.mark.parametrize("num_ranks", [2, 4, 8])
    @pytest.mark.parametrize("work_per_token", [1.0, 0.6])
    def test_an_imbalance_is_named_as_such(self, num_ranks, work_per_token):
        def tokens(rng: random.Random, rank: int) -> float:
            share = 0.5 + rank / (num_ranks - 1)
            return 1000 * share * rng.lognormvariate(0, 0.03)

        job = Job(num_ranks, tokens=tokens, work_per_token=work_per_token)
        for verdict in verdicts(job.steps(30))[4:]:
            assert (verdict.state, verdict.cause) == ("found", "more tokens")
            assert str(num_ranks - 1) in verdict.ranks
            assert "token imbalance" in verdict.summary

    def test_tokens_that_cost_nothing_are_no_excuse(self):
        def tokens(rng: random.Random, rank: int) -> float:
            return 1000 * (0.6 + 0.2 * rank) * rng.lognormvariate(0, 0.03)

        verdict = after(10, Job(num_ranks=8, slow=slower(7, 1.3), tokens=tokens))
        assert (verdict.cause, verdict.ranks) == ("slower at equal tokens", ("7",))

    def test_one_rank_with_more_of_them_among_equals(self):
        def tokens(rng: random.Random, rank: int) -> float:
            return 1000 * (1.3 if rank == 3 else 1) * rng.lognormvariate(0, 0.01)

        verdict = after(5, Job(tokens=tokens, work_per_token=1.0))
        assert (verdict.cause, verdict.ranks) == ("more tokens", ("3",))
        line = next(line for line in verdict.evidence if "tokens" in line)
        assert "rank 3 had 13" in line

    def test_a_slow_rank_shows_through_tokens_that_vary_from_step_to_step(self):
        def tokens(rng: random.Random, rank: int) -> float:
            return 1000 * rng.lognormvariate(0, 0.2)

        named = [
            after(20, Job(slow=slower(1, 1.2), tokens=tokens, work_per_token=1.0, seed=seed))
            for seed in range(10)
        ]
        right = [v.ranks == ("1",) and v.cause == "slower at equal tokens" for v in named]
        assert sum(right) >= 8
        assert all(v.state != "found" or is_right for v, is_right in zip(named, right, strict=True))

    @pytest.mark.parametrize("seed", range(5))
    def test_padding_is_worked_on_too(self, seed):
        """What was told does not vary with the work, what the forward passes took in does."""
        rng = random.Random(seed)
        job = Job(slow=slower(1, 1.25), tokens=_varying, work_per_token=1.0, seed=seed)
        steps = [_told_otherwise(step, rng) for step in job.steps(20)]
        untold = [_without_padding(step) for step in steps]
        (verdict, *_), late = (_found(verdicts(some)) for some in (steps, untold))
        assert (verdict.ranks, verdict.cause) == (("1",), "slower at equal tokens")
        assert all(verdict.step < other.step for other in late)
        (line,) = [line for line in verdict.evidence if "tokens" in line]
        assert "tokens with padding, the others" in line

    def test_slow_although_it_has_as_many_as_the_others(self):
        job = Job(slow=slower(0, 1.3), tokens=lambda rng, rank: 1000.0, work_per_token=1.0)
        assert after(5, job).cause == "slower at equal tokens"

    def test_a_step_with_many_tokens_is_no_stall(self):
        def tokens(rng: random.Random, rank: int) -> float:
            self.num_calls = getattr(self, "num_calls", 0) + 1
            is_long = self.num_calls == 18 * 4  # rank 3 in step 18
            return 1000 * (4 if is_long else 1) * rng.lognormvariate(0, 0.2)

        assert after(20, Job(tokens=tokens, work_per_token=1.0)).cause == ""

    def test_where_none_were_told_the_cause_says_so(self):
        verdict = after(5, Job(slow=slower(0, 1.3)))
        assert verdict.cause == "slower, tokens unknown"
        assert "tokens are unknown: equal work is assumed" in verdict.evidence


class TestCauses:
    def test_the_stage_in_which_the_excess_lies(self):
        verdict = after(5, Job(slow=slower(2, 1.5, UPDATE)))
        assert verdict.stage == "actor_update"
        assert verdict.summary.endswith("slower, in actor_update.")

    def test_idle_before_it_begins_is_a_late_start(self):
        job = Job(slow=slower(2, 20, IDLE), tokens=same_tokens)
        verdict = after(5, job)
        assert (verdict.cause, verdict.stage, verdict.ranks) == ("late start", "", ("2",))
        assert "outside all stages" in verdict.summary

    def test_a_rank_that_waits_for_its_input_is_late(self):
        def slow(step: int, rank: int, part: Part, seconds: float) -> float:
            return seconds

        steps = Job(slow=slow, tokens=same_tokens).steps(5)
        late = []
        for step in steps:
            ranks = dict(step.ranks)
            for label, entry in step.ranks.items():
                extra = 0.3 if label == "1" else 0.0
                parts = {**entry.parts, ("wait", "collector"): 0.01 + extra}
                waited = entry.waited_seconds + 0.3 - extra
                ranks[label] = replace(
                    entry,
                    wall_seconds=entry.wall_seconds + 0.31,
                    waited_seconds=waited,
                    parts=parts,
                )
            late.append(replace(step, ranks=ranks))
        verdict = straggler_verdict("t", late, 1.0)
        assert (verdict.cause, verdict.ranks) == ("late start", ("1",))
        assert "waiting (collector)" in verdict.summary

    def test_more_transfer_than_the_others_is_a_slower_collective(self):
        verdict = after(5, Job(slow=slower(3, 6, TRANSFER), tokens=same_tokens))
        assert (verdict.cause, verdict.ranks) == ("slower collective", ("3",))

    def test_one_stall_is_told_and_no_straggler(self):
        slow = slower(1, 4, ROLLOUT, since=18, until=18)
        verdict = after(20, Job(slow=slow, tokens=same_tokens))
        assert (verdict.state, verdict.cause) == ("insufficient evidence", "host stall")
        assert (verdict.ranks, verdict.step) == (("1",), 18)
        assert any("rollout" in line for line in verdict.evidence)
        later = after(23, Job(slow=slow, tokens=same_tokens))
        assert later.state == "clear"

    def test_two_slow_ranks_are_named_together(self):
        def slow(step: int, rank: int, part: Part, seconds: float) -> float:
            return seconds * (1.3 if rank in (1, 2) else 1)

        steps = Job(num_ranks=6, slow=slow).steps(5)
        verdict = straggler_verdict("t", steps, 1.0, division=Division((tuple("012345"),)))
        assert verdict.ranks == ("1", "2")
        assert verdict.summary.startswith("Ranks 1, 2 make the other ranks wait ")

    def test_two_ranks_that_are_as_slow_may_have_other_work_where_the_layout_is_unknown(self):
        def slow(step: int, rank: int, part: Part, seconds: float) -> float:
            return seconds * (1.3 if rank in (1, 2) else 1)

        verdict = after(5, Job(num_ranks=6, slow=slow))
        assert (verdict.state, verdict.ranks) == ("insufficient evidence", ())
        assert verdict.summary.startswith("Ranks 1, 2 always work longer than the other ranks, by ")
        assert "nobody is blamed" in verdict.summary

    def test_the_evidence_has_the_figures(self):
        verdict = after(8, Job(jitter=0.0, slow=slower(1, 1.5, ROLLOUT), tokens=same_tokens))
        assert verdict.evidence[0] == (
            "rank 1 waited 0 s, the others 0.25 s for peers, median of 5 steps"
        )
        assert verdict.evidence[1] == "rank 1 worked 1.25 s, the others 1 s, median of 5 steps"
        assert "in 5 of the last 5 steps" in verdict.evidence[2]
        assert verdict.evidence[-1] == "more than the others in rollout 0.25 s"
        assert verdict.since_seconds == 1.0
        assert verdict.step == 8

    def test_since_is_the_begin_of_the_unbroken_row(self):
        job = Job(slow=slower(2, 1.3, since=21), tokens=same_tokens)
        assert after(30, job).since_seconds == 21.0


class TestGates:
    def test_too_small_to_matter(self):
        assert after(20, Job(jitter=0.001, slow=slower(1, 1.03))).state == "clear"

    def test_three_steps_are_enough_only_for_a_large_excess(self):
        assert after(2, Job(slow=slower(1, 1.5))).state == "insufficient evidence"
        assert after(3, Job(slow=slower(1, 1.5))).state == "found"
        assert after(3, Job(jitter=0.002, slow=slower(1, 1.1))).state != "found"
        assert after(5, Job(jitter=0.002, slow=slower(1, 1.1))).state == "found"

    def test_warm_up_delays_the_verdict_by_no_more_than_itself(self):
        """The first two steps are long, and on every rank another time."""

        def slow(step: int, rank: int, part: Part, seconds: float) -> float:
            factor = 1.2 if rank == 1 else 1.0
            return seconds * (factor if step > 2 else 2 + rank % 3 * step)

        job = Job(jitter=0.01, slow=slow, tokens=same_tokens)
        assert after(4, job).state == "insufficient evidence"
        assert after(7, job).ranks == ("1",)

    def test_a_rank_that_is_noisier_than_the_others_needs_a_larger_excess(self):
        rng = random.Random(1)

        row = [0.1 + 0.3 * rng.random() for _ in range(32)]
        steady = {"0": [0.0] * 32, "1": row, "2": [0.0, 0.01] * 16, "3": [0.01, 0.0] * 16}
        sigmas = spreads(steady)
        assert sigmas["1"] > 5 * sigmas["2"]
        assert sigmas["2"] == sigmas["3"]

    def test_three_stalls_in_a_row_are_not_enough_later_on(self):
        job = Job(slow=slower(1, 3, since=20, until=22), tokens=same_tokens)
        assert not any(v.state == "found" for v in verdicts(job.steps(30)))

    def test_ranks_that_take_turns_are_no_straggler(self):
        def slow(step: int, rank: int, part: Part, seconds: float) -> float:
            return seconds * (1.5 if step % 4 == rank else 1)

        found = [v for v in verdicts(Job(slow=slow).steps(60)) if v.state == "found"]
        assert found == []

    def test_work_for_which_nobody_waits_is_no_straggler(self):
        """Its steps are longer, as of a rank that meets the others only now and then."""
        steps = []
        for step in Job().steps(10):
            longer = step.ranks["1"]
            longer = replace(
                longer,
                wall_seconds=longer.wall_seconds + 0.5,
                parts={**longer.parts, IDLE: 0.51},
            )
            steps.append(replace(step, ranks={**step.ranks, "1": longer}))
        assert straggler_verdict("t", steps, 1.0).state == "clear"

    def test_lost_records_in_the_steps_looked_at(self):
        steps = Job(slow=slower(1, 1.5)).steps(10)
        steps = [replace(step, num_lost=70 if step.step > 4 else 50) for step in steps]
        verdict = straggler_verdict("t", steps, 1.0)
        assert verdict.state == "insufficient evidence"
        assert "20 records were lost" in verdict.summary
        assert straggler_verdict("t", steps[5:], 1.0).state == "found"

    def test_collectives_that_are_not_seen(self):
        steps = Job(slow=slower(1, 1.5)).steps(10)
        verdict = straggler_verdict("t", steps, 0.4)
        assert verdict.state == "insufficient evidence"
        assert "40 %" in verdict.summary
        assert straggler_verdict("t", steps, None).state == "found"

    def test_nobody_waits_at_all(self):
        steps = []
        for step in Job(slow=slower(1, 1.5)).steps(10):
            ranks = {
                label: replace(entry, waited_seconds=0.0, parts={**entry.parts, TRANSFER: 0.0})
                for label, entry in step.ranks.items()
            }
            steps.append(replace(step, ranks=ranks))
        verdict = straggler_verdict("t", steps, None)
        assert verdict.state == "insufficient evidence"
        assert "Neither collectives nor waits" in verdict.summary

    def test_one_rank_on_this_node(self):
        verdict = after(10, Job(num_ranks=1))
        assert verdict.state == "insufficient evidence"
        assert "Only one rank" in verdict.summary

    def test_steps_with_other_ranks_are_not_compared(self):
        steps = Job(slow=slower(1, 1.5)).steps(10)
        fewer = [
            replace(step, ranks={r: entry for r, entry in step.ranks.items() if r != "3"})
            for step in steps[8:]
        ]
        verdict = straggler_verdict("t", [*steps[:8], *fewer], 1.0)
        assert verdict.state == "insufficient evidence"
        assert verdict.summary.startswith("Too early to judge: 2 steps")

    def test_no_steps_at_all(self):
        assert straggler_verdict("t", [], None).state == "insufficient evidence"
