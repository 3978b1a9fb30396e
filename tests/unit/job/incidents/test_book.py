"""One problem has one begin, one id, one sentence; and what is green is decided in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.catalogue.alerts.alert import verdict_kind
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.declared.progress import LONG_WAIT
from dfx_agent.job.incidents.book import IncidentBook, StepTimes, _begin, _Subject
from dfx_agent.job.incidents.conclude import standing_of
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.snapshot import AlertRow, SignalState, SymptomRow, Verdict
from dfx_agent.web import runbook

SLOW = Verdict(
    "straggler", "found", "actor", "rank 1 makes the others wait", ranks=("1",), stage="forward",
    cause="slower at equal tokens", step=40, since_seconds=1000.0, lost_seconds=0.5,
    evidence=("it waited least",),
)  # fmt: skip
CLEAR = tuple(Verdict(kind, "clear", "actor", "nothing") for kind in ("hang", "crash", "straggler"))
TIMES = StepTimes((("actor", 7, 990.0), ("actor", 8, 1010.0)))


def alert(name: str, severity: str, verdict: str = "", **changes) -> AlertRow:
    row = AlertRow(
        "r", name, severity, {}, f"{name} is so", 1500.0, 9, False, ("who",), "", "", "", verdict,  # noqa: FBT003
    )  # fmt: skip
    return replace(row, **changes)


STRAGGLER_ALERT = alert("DfxStraggler", "warning", "straggler")


class Observed:
    """A book that is asked with the defaults of this file."""

    def __init__(self) -> None:
        self.book = IncidentBook("r")

    def __call__(self, *verdicts, alerts=(), signals=None, now=2000.0):
        return self.book.observe(verdicts, alerts, signals, TIMES, now)


def test_a_verdict_and_its_alert_are_one_incident_with_the_begin_of_the_event():
    (only,) = Observed()(SLOW, *CLEAR[:2], alerts=(STRAGGLER_ALERT,))
    assert (only.kind, only.state, only.role, only.ranks) == ("straggler", "found", "actor", ("1",))
    assert only.alerts == ("DfxStraggler",)
    assert (only.since_seconds, only.step) == (1000.0, 7), "the step that it began in, not 40"
    assert only.sentence.startswith(
        "Rank 1 makes the others wait. It began at step 7 (1970-01-01 00:16"
    )
    assert "It costs 0.5 s of every step." in only.sentence
    assert only.action
    assert only.sentence.endswith(only.action)


def test_a_begin_before_the_stored_steps_has_no_step():
    """Not 40: that is the latest step, which the verdict looked at."""
    (only,) = Observed()(replace(SLOW, since_seconds=900.0))
    assert (only.since_seconds, only.step) == (900.0, None)
    assert "It began at 1970-01-01 00:15:00 UTC." in only.sentence


def test_the_begin_stays_when_the_verdict_looks_back_less_far_and_other_ranks_come_in():
    observed = Observed()
    (first,) = observed(SLOW)
    later = replace(SLOW, since_seconds=1500.0, ranks=("1", "2"), lost_seconds=0.7)
    (second,) = observed(later, alerts=(STRAGGLER_ALERT,), now=2100.0)
    assert (second.id, second.since_seconds, second.step) == (first.id, 1000.0, 7)
    assert second.ranks == ("1", "2")


def test_an_alert_that_outlasts_its_verdict_names_its_ranks():
    observed = Observed()
    (first,) = observed(SLOW, alerts=(STRAGGLER_ALERT,))
    (second,) = observed(*CLEAR, alerts=(STRAGGLER_ALERT,), now=2005.0)
    assert (second.id, second.ranks, second.summary) == (first.id, ("1",), SLOW.summary)
    assert second.state == "warning"
    assert second.sentence.endswith("This is not found any more; its alert ends soon.")
    assert (second.action, first.action in second.sentence) == ("", False)


def test_an_incident_survives_a_gap_and_a_new_begin_is_another_one():
    observed = Observed()
    (first,) = observed(SLOW, now=2000.0)
    assert observed(*CLEAR, now=2010.0) == ()
    (again,) = observed(replace(SLOW, since_seconds=1900.0), now=2020.0)
    assert (again.id, again.since_seconds) == (first.id, 1000.0)
    assert observed(now=2030.0) == ()
    (other,) = observed(replace(SLOW, since_seconds=2025.0), now=2040.0)
    assert other.id != first.id
    assert other.since_seconds == 2025.0


def test_an_alert_that_warned_first_leaves_the_begin_to_the_event():
    stuck = Verdict(
        "hang", "found", "actor", "rank 1 is stuck for 391 s", ("1",), step=8, since_seconds=1609.0
    )
    observed = Observed()
    waits = alert("DfxLongWait", "warning", "hang", since_seconds=1713.0)
    (first,) = observed(alerts=(waits,), now=1713.0)
    assert first.since_seconds == 1713.0
    (second,) = observed(stuck, alerts=(waits,), now=2000.0)
    assert (second.id, second.since_seconds, second.step) == (first.id, 1609.0, 8)
    (third,) = observed(replace(stuck, since_seconds=1700.0), now=2001.0)
    assert (third.since_seconds, third.step) == (1609.0, 8), "a later one does not"


@pytest.mark.parametrize(
    ("kind", "earlier", "begin"),
    [("straggler", 100.0, 1000.0), ("hang", 100.0, 900.0), ("hang", 2e-7, 1000.0)],
)
def test_the_begin_of_an_event_stays_unless_the_summary_says_an_earlier_one(kind, earlier, begin):
    """By another agent's clock the same stamp is 200 ns earlier: that is no other begin."""
    observed = Observed()
    slow = replace(SLOW, kind=kind)
    (first,) = observed(slow)
    (second,) = observed(replace(slow, since_seconds=1000.0 - earlier), now=2100.0)
    assert (second.id, second.since_seconds) == (first.id, begin)


def test_a_nan_begins_at_the_step_that_it_was_reported_of():
    """Pipelines: by the clock, the role's newest kept step was still an earlier one."""
    loss = Verdict(
        "divergence", "found", "actor", "the loss is infinite since step 9", ("1", "2"),
        cause="NaN or Inf, loss first", step=9, since_seconds=1009.0,
    )  # fmt: skip
    (only,) = Observed()(loss)
    assert (only.step, only.since_seconds) == (9, 1009.0)
    assert "since step 7" not in only.sentence


BUSY = Verdict("straggler", "insufficient evidence", "actor", "this host's processors were busy")
CALM = Verdict("straggler", "clear", "actor", "nothing")


@pytest.mark.parametrize(
    ("between", "since", "goes_on"),
    [
        ((BUSY,), 2100.0, True),
        ((BUSY, BUSY), 2121.0, False),
        ((CALM,), 2100.0, False),
        ((BUSY, CALM), 2100.0, False),
        ((CALM, BUSY), 2100.0, False),
        ((BUSY, replace(SLOW, ranks=("2",))), 2100.0, False),
        ((replace(BUSY, role="critic"),), 2100.0, False),
        ((replace(BUSY, kind="hang"),), 2100.0, False),
    ],
)
def test_an_unsure_judge_does_not_end_it_for_two_minutes(between, since, goes_on):
    observed = Observed()
    (first,) = observed(SLOW, now=2000.0)
    for seconds, verdict in enumerate(between, 2001):
        reported = observed(verdict, now=float(seconds))
        assert first.id not in {incident.id for incident in reported}, "it is not told meanwhile"
    (again,) = observed(replace(SLOW, since_seconds=since), now=since + 10)
    assert (again.id == first.id) == goes_on
    assert again.since_seconds == (1000.0 if goes_on else since)


def test_another_rank_or_role_is_another_incident():
    observed = Observed()
    (first,) = observed(SLOW)
    (other,) = observed(replace(SLOW, ranks=("2",), since_seconds=3000.0))
    assert other.id != first.id
    two = observed(SLOW, replace(SLOW, role="critic"))
    assert len({incident.id for incident in two}) == 2


def test_a_leak_of_the_host_is_not_the_device_of_the_same_rank_that_fills_up():
    leak = Verdict("memory", "found", "actor", "leaks", ("1",), cause="leak", since_seconds=900.0)
    device = replace(leak, summary="fills", cause="device", since_seconds=1900.0)
    observed = Observed()
    both = observed(leak, device)
    assert len({incident.id for incident in both}) == 2
    (left,) = observed(device)
    assert left.since_seconds == 1900.0


def test_an_alert_that_came_first_is_the_incident_that_the_verdict_joins():
    observed = Observed()
    symptoms = (SymptomRow("entropy", "up", is_active=True, onset_step=7),)
    state = SignalState(
        row=1, step=9, signals=(), symptoms=symptoms, is_reward_improving=None, is_latched=False,
        latched_step=None, num_nonfinite_steps={}, num_identical_score_steps=None,
        had_score_signal=False,
    )  # fmt: skip
    unstable = alert("DfxTrainingUnstable", "warning", "divergence")
    (first,) = observed(alerts=(unstable,), signals=state)
    assert (first.kind, first.state, first.step) == ("divergence", "warning", 7)
    assert first.since_seconds == 990.0, "the begin of the onset step, not when it was evaluated"
    found = Verdict("divergence", "found", "actor", "training is diverging", step=8)
    (second,) = observed(found, alerts=(unstable,), signals=state)
    assert (second.id, second.state) == (first.id, "found")
    assert (second.step, second.since_seconds) == (8, 1010.0), "the verdict knows since when"
    (third,) = observed(alerts=(unstable,), signals=state)
    assert (third.id, third.step) == (first.id, 8), "and the alert does not take it back"
    assert second.severity == "critical"


def test_a_nan_says_what_to_do_before_its_alert_fires_and_after():
    observed = Observed()
    cause = "NaN or Inf, loss first"
    broken = Verdict("divergence", "found", "actor", "the loss is NaN", cause=cause, step=7)
    (first,) = observed(broken)
    (second,) = observed(broken, alerts=(alert("DfxNonFinite", "critical", "divergence"),))
    assert second.sentence == first.sentence
    assert "restart from the latest checkpoint" in first.action
    assert f'id="{first.runbook}"' in runbook.page()


def test_the_sentence_of_a_collapse_says_what_moved_first_and_the_alert_takes_it():
    found = Verdict(
        "divergence", "found", "actor", "training is diverging since step 8: entropy rose", step=8,
        cause="entropy first: the policy becomes noise",
    )  # fmt: skip
    (only,) = Observed()(found, alerts=(alert("DfxTrainingDivergence", "critical", "divergence"),))
    assert "Entropy first: the policy becomes noise. Keep the latest checkpoint" in only.sentence
    (straggler,) = Observed()(SLOW)
    assert "Slower at equal tokens." not in straggler.sentence, "its summary says so itself"


def test_an_alert_that_is_context_for_others_says_no_remedy():
    (only,) = Observed()(alerts=(alert("DfxSymptomKl", "info", "divergence"),))
    assert (only.cost, only.action) == ("", "")
    assert "None" not in only.sentence


def test_alerts_on_no_verdict_are_incidents_by_name_and_inhibited_ones_are_spoken_for():
    incidents = Observed()(
        alerts=(
            alert("DfxNoLearningSignal", "warning"),
            alert("DfxNoLearningSignal", "critical"),
            alert("DfxEntropyDrift", "warning", is_inhibited=True),
        )
    )
    (only,) = incidents
    assert (only.kind, only.state, only.alerts) == (
        "DfxNoLearningSignal", "found", ("DfxNoLearningSignal",),
    )  # fmt: skip
    assert only.since_seconds == 1500.0


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_who_stands_does_so_in_its_own_step_whatever_others_are_in(kind):
    """Rank 3 of a subgroup slept in step 40, the other group was in 42: "since step 42"."""
    stuck = Verdict(kind, "found", "actor", "rank 3", ranks=("3",), step=6, since_seconds=1011.0)
    (only,) = Observed()(stuck)
    assert (only.step, only.since_seconds) == (6, 1011.0)
    (only,) = Observed()(replace(stuck, step=None))
    assert only.step == 8


def test_the_worst_comes_first():
    hang = Verdict("hang", "found", "actor", "rank 2 is stuck", ranks=("2",), since_seconds=1900.0)
    info = alert("DfxSymptomKl", "info", "divergence")
    kinds = [incident.kind for incident in Observed()(SLOW, hang, alerts=(info,))]
    assert kinds == ["hang", "straggler", "divergence"]


COMES = Verdict("hang", "insufficient evidence", "", "1 of 2 nodes is here")
UNSURE = Verdict("straggler", "insufficient evidence", "actor", "3 steps, at least 5 needed")


@pytest.mark.parametrize(
    ("verdicts", "alerts", "has_steps", "state", "says"),
    [
        ((), (), False, "insufficient evidence", "Nothing has been judged yet."),
        (CLEAR, (), False, "insufficient evidence", "Waiting for the first complete step."),
        (
            (COMES, *CLEAR[1:]),
            (),
            False,
            "insufficient evidence",
            "Waiting for the first complete step. 1 of 2",
        ),
        (CLEAR, (), True, "clear", "No problem found. Checked: hang, crash, straggler"),
        ((*CLEAR, UNSURE), (), True, "insufficient evidence", "Straggler: 3 steps, at least 5"),
        ((*CLEAR[:2], SLOW), (), True, "found", "Rank 1 makes the others wait."),
        (CLEAR, (alert("DfxA", "warning"),), True, "warning", "DfxA is so"),
        (CLEAR, (alert("DfxA", "info"),), True, "clear", "straggler. Also noted: DfxA is so"),
        ((*CLEAR, UNSURE), (alert("DfxA", "info"),), True, "insufficient evidence", "noted: DfxA"),
        (CLEAR, (alert("DfxA", "info"), alert("DfxB", "warning")), True, "warning", "DfxB is so"),
        (CLEAR, (alert("DfxA", "critical"),), True, "found", "DfxA is so"),
        ((*CLEAR, UNSURE), (alert("DfxA", "warning"),), True, "warning", "DfxA is so"),
    ],
)
def test_a_run_is_clear_only_where_all_was_judged_and_nothing_fires(
    verdicts, alerts, has_steps, state, says
):
    incidents = Observed()(*verdicts, alerts=alerts)
    standing = standing_of(verdicts, incidents, has_steps=has_steps)
    assert standing.state == state
    assert says in standing.reason


def test_an_unknown_state_of_a_judge_is_not_clear():
    blind = replace(CLEAR[0], state="blind")
    assert standing_of((blind, *CLEAR[1:]), (), has_steps=True).state == "insufficient evidence"


def test_alerts_name_the_verdict_that_they_read():
    kinds = {alert.name: verdict_kind(alert) for alert in ALERTS}
    assert kinds["DfxStepStalled"] == kinds["DfxStageStalled"] == "hang"
    assert kinds["DfxRankDied"] == "crash"
    assert kinds["DfxStraggler"] == kinds["DfxRankImbalance"] == "straggler"
    assert kinds["DfxTrainingUnstable"] == kinds["DfxSymptomKl"] == "divergence"
    assert kinds["DfxDataMisaligned"] == "data"
    assert kinds["DfxNoLearningSignal"] == kinds["DfxShimDropping"] == ""


@pytest.mark.parametrize(
    ("symptom", "is_active"), [("entropy", False), ("reward_improving", True), ("length", False)]
)
def test_a_divergence_begins_with_what_is_active_and_no_improvement(symptom, is_active):
    symptoms = (
        SymptomRow(symptom, "up", is_active, onset_step=7),
        SymptomRow("grad_norm", "up", is_active=True, onset_step=8),
    )
    state = replace(SignalBank().observe(9, {}), symptoms=symptoms)
    unstable = alert("DfxTrainingUnstable", "warning", "divergence")
    (only,) = Observed()(alerts=(unstable,), signals=state)
    assert (only.step, only.since_seconds) == (8, 1010.0)


def test_a_severity_that_nobody_knows_is_the_mildest():
    kinds = [("DfxA", "strange"), ("DfxB", "warning"), ("DfxC", "info")]
    reported = Observed()(alerts=[alert(name, severity) for name, severity in kinds])
    assert [(i.kind, i.severity) for i in reported] == [
        ("DfxB", "warning"), ("DfxA", "info"), ("DfxC", "info"),
    ]  # fmt: skip


def test_steps_by_role():
    times = StepTimes((("actor", 7, 990.0), ("critic", 7, 980.0), ("actor", 8, 1010.0)))
    assert times.begin_of("actor", 7) == 990.0
    assert times.begin_of("rollout", 7) == times.begin_of("", 7) == 980.0
    assert times.begin_of("critic", 8) == 1010.0
    assert times.begin_of("actor", 9) is None
    assert [times.step_at("actor", t) for t in (989.9, 990, 1009, 1010, 9e9)] == [None, 7, 7, 8, 8]
    assert times.step_at("rollout", 9e9) is None


def test_the_oldest_ended_incidents_are_forgotten():
    observed = Observed()
    slow = [replace(SLOW, ranks=(str(n),), since_seconds=1000.0) for n in range(40)]
    ids = {incident.ranks[0]: incident.id for incident in observed(*slow)}
    assert observed(now=2010.0) == ()
    again = {i.ranks[0]: i.since_seconds for i in observed(
        *(replace(v, since_seconds=1500.0) for v in slow), now=2020.0)}  # fmt: skip
    assert len(set(ids.values())) == 40
    assert [rank for rank, since in again.items() if since == 1500.0] == [str(n) for n in range(8)]


@pytest.mark.parametrize(
    ("step", "begin"), [(7, (990.0, 7)), (99, (1500.0, 99)), (None, (1500.0, None))]
)
def test_a_begin_is_that_of_the_event_where_its_step_is_known(step, begin):
    for kind, is_onset in (("straggler", False), ("divergence", True)):
        found = replace(SLOW, kind=kind, since_seconds=None, step=step)
        made = _begin(_Subject(kind, found, (STRAGGLER_ALERT,)), None, TIMES, 2000.0)
        assert tuple(made[:2]) == begin
        assert made.is_event == (is_onset and step == 7), "the step of others is the newest"
    reported = _Subject("straggler", None, (replace(STRAGGLER_ALERT, since_step=8),))
    assert _begin(reported, None, TIMES, 2000.0)[:3] == (1010.0, 8, False)


WAITS = Verdict(
    "hang", "insufficient evidence", "trainer", "Rank 0 waits for rank 1, which reads a queue.",
    cause=LONG_WAIT, evidence=("stack of rank 1: wait (connection.py:947)",),
)  # fmt: skip


def test_the_alert_on_a_long_wait_says_what_its_verdict_says():
    long_wait = alert("DfxStageStalled", "warning", "hang", lines=())
    (only,) = Observed()(WAITS, alerts=(long_wait,))
    assert (only.state, only.summary, only.evidence) == ("warning", WAITS.summary, WAITS.evidence)
    assert only.sentence.startswith("Rank 0 waits for rank 1, which reads a queue. It began at")
