"""What happened is not forgotten: incidents that are over, how a run ended, and what it is then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.job.incidents.conclude import Judged, conclude
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.snapshot import AlertRow, RankRow, TimeSplit, Verdict

LEAK = Verdict(
    "memory", "found", "trainer", "Rank 0 grows by 4 MiB per step.", ("0",), cause="host leak",
    step=94, since_seconds=1000.0,
)  # fmt: skip
CALM = Verdict("memory", "clear", "trainer", "No process grows steadily.")
HANG_CLEAR = Verdict("hang", "clear", "trainer", "No rank waits for long.")
ALERT = AlertRow(
    "r", "DfxHostMemoryLeak", "warning", {}, "Memory leaks", 1010.0, 94, False, (), "", "", "",  # noqa: FBT003
    "memory",
)  # fmt: skip


def rank(label: str, state: str, event: float = 1100.0) -> RankRow:
    return RankRow(
        role="trainer", rank=label, local_rank=None, world_size=2, node="n", pid=1, attempt=0,
        state=state, begin_seconds=900.0, last_event_seconds=event, step=120,
        step_begin_seconds=None, inflight=(), totals=TimeSplit(), current=TimeSplit(), last=None,
        tokens_total={}, queue_depth={}, policy_version=None, scalars=(), stamps=(),
        num_records=1, num_lost_records=0, num_late_records=0, num_guest_drops=0,
    )  # fmt: skip


STEPS = StepTimes((("trainer", 120, 1099.0),))
LIVING = [rank("0", "live"), rank("1", "live")]
ENDED = [rank("0", "exited", 1099.0), rank("1", "exited")]


class Run:
    """A book that is asked with the defaults of this file."""

    def __init__(self) -> None:
        self.book = IncidentBook("r")

    def __call__(self, *verdicts, alerts=(), ranks=LIVING, now):
        judged = Judged(verdicts, alerts, None, STEPS, ranks, has_steps=True)
        return conclude(self.book, judged, now)


def test_a_leak_that_lasted_until_the_run_ended_is_what_the_run_is_in():
    run = Run()
    run(LEAK, HANG_CLEAR, alerts=(ALERT,), now=1050.0)
    run(LEAK, HANG_CLEAR, alerts=(ALERT,), now=1100.0)
    ended = run(HANG_CLEAR, ranks=ENDED, now=1101.0)
    assert ended.incidents == ()
    (leak,) = ended.past_incidents
    assert (leak.kind, leak.state, leak.is_until_run_end) == ("memory", "found", True)
    assert (leak.end_seconds, leak.alerts) == (1100.0, ("DfxHostMemoryLeak",))
    assert ended.ending == "The run ended normally at 1970-01-01 00:18:20 UTC, after step 120."
    assert ended.standing.state == "found"
    assert ended.standing.reason.startswith("Rank 0 grows by 4 MiB per step. It began at step 94")
    assert ended.standing.reason.endswith(ended.ending)


def test_it_is_so_also_where_the_alert_outlasts_the_verdict():
    run = Run()
    run(LEAK, HANG_CLEAR, alerts=(ALERT,), now=1050.0)
    run(HANG_CLEAR, alerts=(ALERT,), ranks=ENDED, now=1101.0)
    (leak,) = run(HANG_CLEAR, ranks=ENDED, now=1115.0).past_incidents
    assert (leak.state, leak.summary, leak.is_until_run_end) == ("found", LEAK.summary, True)


def test_a_clear_run_shows_its_earlier_incidents():
    run = Run()
    run(LEAK, HANG_CLEAR, now=1010.0)
    run(LEAK, HANG_CLEAR, now=1030.0)
    later = run(CALM, HANG_CLEAR, now=1040.0)
    assert later.standing.state == "clear"
    assert later.standing.reason == (
        "No problem found. Checked: memory, hang. "
        "Earlier, from 00:16:40 to 00:17:20 UTC: Rank 0 grows by 4 MiB per step."
    )
    (leak,) = run(CALM, HANG_CLEAR, ranks=ENDED, now=1101.0).past_incidents
    assert not leak.is_until_run_end
    assert leak.sentence.endswith("It was over at 1970-01-01 00:17:20 UTC.")
    assert leak.action, "stored, but not part of the sentence"
    assert leak.action not in leak.sentence


def test_what_lasted_for_a_moment_is_not_remembered_unless_it_is_critical():
    run = Run()
    hang = Verdict("hang", "found", "trainer", "Rank 1 is stuck.", ("1",), since_seconds=1000.0)
    run(LEAK, hang, now=1010.0)
    kinds = [row.kind for row in run(CALM, HANG_CLEAR, now=1012.0).past_incidents]
    assert kinds == ["hang"]


def test_what_is_found_again_is_not_over():
    run = Run()
    run(LEAK, now=1010.0)
    run(LEAK, now=1030.0)
    assert run(CALM, now=1040.0).past_incidents
    again = run(replace(LEAK, since_seconds=1000.0), now=1041.0)
    assert (len(again.incidents), again.past_incidents) == (1, ())


def test_ranks_that_did_not_shut_down_are_named_at_the_end():
    broken = [rank("0", "exited"), rank("1", "died")]
    ended = Run()(HANG_CLEAR, ranks=broken, now=1101.0)
    assert ended.ending.endswith("in step 120: rank 1 did not shut down in order.")


def test_a_run_with_one_live_process_has_not_ended():
    some = [rank("0", "live"), rank("1", "exited")]
    assert Run()(HANG_CLEAR, ranks=some, now=1101.0).ending == ""


def test_a_run_that_failed_has_not_ended_normally():
    """A process that raises an exception shuts down in order."""
    crash = Verdict("crash", "found", "trainer", "Rank 1 failed with exit code 1.", ("1",),
                    since_seconds=1090.0)  # fmt: skip
    ended = Run()(crash, ranks=ENDED, now=1100.0).ending
    assert ended.startswith("The run ended at ")
    assert Run()(ranks=ENDED, now=1100.0).ending.startswith("The run ended normally at ")


def test_what_was_checked_comes_before_what_cannot_be_judged():
    unsure = Verdict("straggler", "insufficient evidence", "trainer", "2 steps seen, 5 needed.")
    standing = Run()(unsure, CALM, HANG_CLEAR, now=1050.0).standing
    assert standing.state == "insufficient evidence"
    assert standing.reason == (
        "No problem found. Checked: memory, hang. Straggler: 2 steps seen, 5 needed."
    )


def test_a_kind_that_one_role_cannot_judge_does_not_count_as_checked():
    unsure = Verdict("memory", "insufficient evidence", "actor", "Too few samples.")
    standing = Run()(unsure, CALM, HANG_CLEAR, now=1050.0).standing
    assert standing.reason == "No problem found. Checked: hang. Memory: Too few samples."


def test_what_a_problem_costs_is_not_said_of_a_run_that_has_ended():
    crash = Verdict("crash", "found", "trainer", "Rank 1 failed.", ("1",), cause="died")
    cost = "Ranks that wait for it in a collective are blocked"
    run = Run()
    assert cost in run(crash, now=1090.0).incidents[0].sentence
    (incident,) = run(crash, ranks=[rank("0", "died"), rank("1", "died")], now=1100.0).incidents
    assert cost not in incident.sentence
    assert incident.cost == ""
    assert "Restart from the latest checkpoint" in incident.sentence


@pytest.mark.parametrize("states", [("detached", "detached"), ("exited", "detached")])
def test_a_job_that_was_detached_is_not_clear_and_has_not_ended_normally(states):
    ranks = [rank(str(number), state) for number, state in enumerate(states)]
    run = Run()(CALM, HANG_CLEAR, ranks=ranks, now=1101.0)
    assert run.standing.state == "insufficient evidence"
    assert run.standing.reason == (
        "The job was detached at 1970-01-01 00:18:20 UTC, in step 120. It may still run. "
        "Nothing is known of the job since then."
    )


@pytest.mark.parametrize(
    ("has_signals", "state"), [(False, "insufficient evidence"), (True, "clear")]
)
def test_a_log_has_no_times_and_waits_for_no_step_once_a_row_is_judged(has_signals, state):
    calm = Verdict("divergence", "clear", "log", "No signal has left its baseline.")
    signals = SignalBank().observe(7, {"reward": 0.5}) if has_signals else None
    log = [rank("0", "live")]
    judged = Judged((calm,), (), signals, StepTimes(()), log, has_steps=False)
    standing = conclude(IncidentBook("r"), judged, 1000.0).standing
    assert standing.state == state
    assert ("Waiting for the first complete step" in standing.reason) is not has_signals
