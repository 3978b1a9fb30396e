"""Live training health: steps reach the detector once, in order, whole; and outlive the agent."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kept_json import through_json

from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.divergence.health import RunHealth, SavedHealth
from dfx_agent.snapshot.document import Document


class Rank:
    """One process that reports to a RunHealth; its clock counts values."""

    clock = 0

    def __init__(
        self, health: RunHealth, rank: str = "0", role: str = "trainer", created=1
    ) -> None:
        self.health = health
        self.me = ProcessId(role, rank, created)
        self.told: int | None = None

    def report(self, step: int | None, framework: str = "verl", **values: float) -> None:
        """Names as keywords: ``actor__entropy`` is "actor/entropy"."""
        keys = {name.replace("__", "/"): value for name, value in values.items()}
        self.report_keys(step, keys, framework)

    def report_keys(self, step, values, framework="verl") -> None:
        for key, value in values.items():
            Rank.clock += 1
            record = ScalarRecord(key, value, step, Rank.clock * 10**9, self.told)
            self.health.add(ReportedScalars(self.me, framework, (record,), 0))

    def step(self, step: int, value: float | None = None) -> None:
        self.told = step
        if value is not None:
            self.report(step, actor__entropy=value)


def read(health: RunHealth, *ranks: Rank, times: int = 2) -> None:
    for _ in range(times):
        health.close({rank.me: rank.told for rank in ranks})


def seen(health: RunHealth, signal: str = "entropy") -> list[tuple[int, float | None]]:
    rows = [(s.step, {row.signal: row.value for row in s.signals}) for s in health.states]
    return [(step, values.get(signal)) for step, values in rows]


def test_a_step_is_taken_when_the_next_one_has_begun_and_one_reading_later():
    health = RunHealth()
    rank = Rank(health)
    rank.step(1, 0.5)
    read(health, rank, times=5)
    assert health.state is None
    rank.step(2)
    read(health, rank, times=1)
    assert health.state is None
    rank.report(1, actor__entropy=0.7)  # it comes a little late, and replaces
    read(health, rank, times=1)
    assert seen(health) == [(1, 0.7)]
    rank.report(1, actor__entropy=0.9)
    read(health, rank)
    assert (seen(health), health.num_late) == ([(1, 0.7)], 1)


def test_keys_of_a_trainer_that_nobody_knows_are_read_by_their_words():
    health = RunHealth()
    rank = Rank(health)
    for step in (1, 2):
        rank.told = step
        rank.report(step, "mine", my__policy_entropy=9.0, policy_entropy=0.5, reward_mean=0.25)
    rank.told = 3
    read(health, rank)
    assert seen(health) == [(1, 0.5), (2, 0.5)]
    assert seen(health, "reward") == [(1, 0.25), (2, 0.25)]


def test_ranks_of_a_role_are_waited_for_and_merged():
    health = RunHealth()
    ranks = [Rank(health, str(n)) for n in range(3)]
    for value, rank in enumerate(ranks):
        rank.step(1, float(value + 1))
    for rank in ranks[:2]:
        rank.step(2)
    read(health, *ranks)
    assert health.state is None, "rank 2 has not passed step 1"
    ranks[2].report(1, critic__score__max=9.0, critic__score__min=-1.0)
    ranks[0].report(1, critic__score__max=5.0, critic__score__min=-5.0)
    ranks[2].step(2)
    read(health, *ranks)
    assert seen(health) == [(1, 2.0)]
    assert health.state.num_identical_score_steps == 0


def test_a_rank_that_is_two_steps_ahead_or_the_death_of_others_ends_the_waiting():
    health = RunHealth()
    fast, stuck = Rank(health, "0"), Rank(health, "1")
    fast.step(1, 0.1)
    stuck.step(1, 0.3)
    fast.step(2, 0.2)
    read(health, fast, stuck)
    assert seen(health) == []
    fast.step(3)
    read(health, fast, stuck)
    assert seen(health) == [(1, pytest.approx(0.2))]
    read(health, fast)
    assert [step for step, _ in seen(health)] == [1, 2]
    fast.step(3, 0.4)
    health.close({})
    assert [step for step, _ in seen(health)] == [1, 2, 3], "all are gone: what is left is taken"


def test_a_number_of_a_device_that_comes_a_step_late_is_waited_for():
    health = RunHealth()
    rank = Rank(health)
    rank.step(1)
    rank.report(1, actor__entropy=0.5, actor__grad_norm=1.0)
    rank.step(2)
    read(health, rank)
    rank.report(2, actor__entropy=0.5)
    rank.step(3)
    read(health, rank, times=4)
    assert [step for step, _ in seen(health)] == [1]
    rank.report(2, actor__grad_norm=3.0)
    read(health, rank)
    assert seen(health, "grad_norm") == [(1, 1.0), (2, 3.0)]
    rank.report(3, actor__entropy=0.5)  # this time it never comes
    rank.step(4)
    rank.step(5)
    read(health, rank)
    assert seen(health, "grad_norm")[-1] == (3, None)
    assert health.num_late == 0


def test_one_role_speaks_for_a_metric_and_the_critic_never_does():
    health = RunHealth()
    driver, actor, critic = (Rank(health, "0", role) for role in ("driver", "actor", "critic"))
    for step in (1, 2, 3):
        actor.report_keys(step, {"torch/grad_norm": 7.0})
        critic.report_keys(step, {"torch/grad_norm": 900.0, "torch/loss": 5.0})
        if step > 1:  # what comes later does not change whose number it is
            driver.report(step, actor__grad_norm=2.0)
        for rank in (driver, actor, critic):
            rank.step(step + 1)
        read(health, driver, actor, critic)
    assert seen(health, "grad_norm") == [(1, 7.0), (2, 7.0), (3, 7.0)]
    assert health.roles[0] in {"actor", "driver"}
    assert "critic" not in health.roles


def test_a_frameworks_own_number_is_preferred_to_the_hooks():
    health = RunHealth()
    rank = Rank(health)
    rank.report_keys(1, {"torch/actor/grad_norm": 7.0, "actor/grad_norm": 2.0})
    rank.step(2)
    read(health, rank)
    assert seen(health, "grad_norm") == [(1, 2.0)]


def test_a_role_that_falls_silent_is_replaced_and_its_baseline_forgotten():
    health = RunHealth()
    driver, trainer = Rank(health, role="driver"), Rank(health, role="trainer")
    for step in range(80):
        driver.step(step, 0.5 + 0.01 * (step % 2))
        read(health, driver)
    for step in range(80, 180):
        trainer.step(step, 9.0 + 0.01 * (step % 2))
        read(health, trainer)
    values = [value for _, value in seen(health)]
    assert values[-1] > 8.0
    assert not [s for state in health.states for s in state.symptoms if s.is_active]


def test_a_run_without_a_signal_has_no_state():
    health = RunHealth()
    rank = Rank(health)
    for step in range(5):
        rank.report_keys(step, {"my/own": 1.0, "perf/throughput": 2.0})
        rank.step(step)
        read(health, rank)
    assert health.state is None
    assert health.num_late == 0


def trained(health: RunHealth, rank: Rank, steps: range) -> None:
    for step in steps:
        rank.step(step, 0.5 + 0.01 * (step % 3))
        read(health, rank)
    rank.step(steps.stop)
    read(health, rank)


def test_the_second_rank_of_a_restarted_job_resets_nothing():
    health = RunHealth()
    trained(health, Rank(health), range(1, 21))
    second = [Rank(health, "0", created=50), Rank(health, "1", created=51)]
    for step in range(11, 14):
        for rank in second:
            rank.step(step, 0.6)
        read(health, *second)
    assert [step for step, _ in seen(health)] == [*range(1, 11), 11, 12]
    assert health.state.row == 21
    assert health.num_late == 0


def test_the_second_rank_of_a_restarted_job_voids_nothing_of_the_first():
    health = RunHealth()
    first = [Rank(health, "0"), Rank(health, "1")]
    for step in range(1, 21):
        for rank in first:
            rank.step(step, 0.5)
        read(health, *first)
    second = [Rank(health, "0", created=50), Rank(health, "1", created=51)]
    for step in (11, 12, 13, 14):
        second[0].step(step, 0.6)
        second[1].step(step, 0.8 if step >= 13 else None)  # reports late in the job
        read(health, *second)
    assert seen(health)[-1] == (13, pytest.approx(0.7))


def test_a_loop_that_goes_back_in_one_process_is_a_restart_and_a_late_value_is_not():
    health = RunHealth()
    rank = Rank(health)
    trained(health, rank, range(1, 11))
    rank.report(4, actor__entropy=9.0)  # still in step 11: late
    read(health, rank)
    assert (health.num_late, health.state.step) == (1, 10)
    trained(health, rank, range(5, 8))
    assert [step for step, _ in seen(health)] == [1, 2, 3, 4, 5, 6, 7]


def test_values_without_a_step_are_numbered_until_a_step_is_reported():
    health = RunHealth()
    rank = Rank(health)
    for value in (0.1, 0.2, 0.3, 0.4):
        rank.report(None, actor__entropy=value)
        read(health, rank)
    assert seen(health) == [(0, 0.1), (1, 0.2), (2, 0.3)]
    rank.step(1, 0.5)
    rank.report(None, actor__entropy=99.0)
    rank.step(2, 0.6)
    rank.step(3)
    read(health, rank)
    # the first step after going back is not scored
    assert seen(health) == [(0, 0.1), (1, None), (2, 0.6)]


def test_nan_reaches_the_detector():
    health = RunHealth()
    ranks = [Rank(health, "0"), Rank(health, "1")]
    for rank, value in zip(ranks, (1.0, math.nan), strict=True):
        rank.report(1, actor__pg_loss=value, actor__entropy=0.5)
        rank.step(2)
    read(health, *ranks)
    assert health.state.num_nonfinite_steps["loss"] == 1


def test_what_was_learned_outlives_the_agent_and_what_it_saw_is_not_seen_twice():
    health = RunHealth()
    rank = Rank(health)
    trained(health, rank, range(1, 31))
    stored = through_json(health.save())
    row = health.state.row
    again = RunHealth()
    again.resume(stored)
    assert again.state.row == row
    assert again.state.signals[0].is_baseline_ready
    rank.health = again
    Rank.clock -= 3  # the ring is read from its oldest record on: the newest steps once more
    for step in (28, 29, 30):
        rank.report(step, actor__entropy=0.5)
    read(again, rank)
    assert (again.state.row, again.num_late) == (row, 0)
    rank.step(31, 0.5)
    rank.step(32)
    read(again, rank)
    assert (again.state.step, again.state.row) == (31, row + 1)


def test_a_job_that_was_restarted_while_no_agent_looked_is_a_restart():
    health = RunHealth()
    trained(health, Rank(health), range(1, 31))
    again = RunHealth()
    again.resume(through_json(health.save()))
    trained(again, Rank(again, created=99), range(1, 4))
    assert [step for step, _ in seen(again)] == [1, 2, 3]


def test_a_reset_takes_the_present_as_normal():
    health = RunHealth()
    rank = Rank(health)
    trained(health, rank, range(1, 21))
    assert health.state.signals[0].is_baseline_ready
    health.reset()
    assert not health.state.signals[0].is_baseline_ready
    assert health.state.step == 20


@pytest.mark.parametrize("damage", [{}, {"bank": 3}, {"bank": {"row": "x"}}, [], None])
def test_state_of_no_detector_is_refused(damage):
    with pytest.raises(ValueError, match="validation error"):
        Document[SavedHealth](SavedHealth).loaded(damage)


KEYS = ("actor/entropy", "actor/pg_loss", "actor/grad_norm", "critic/score/mean",
        "critic/score/max", "critic/score/min", "response_length/mean",
        "response_length/clip_ratio")  # fmt: skip
NUMBERS = st.one_of(
    st.floats(0.4, 0.6),
    st.sampled_from([0.0, 1.0, 8.0, -1.0, 1e7, 1e300, math.nan, math.inf, -math.inf]),
)
ROWS = st.lists(st.dictionaries(st.sampled_from(KEYS), NUMBERS), min_size=1, max_size=25)


def concluded(health):
    """All but the shown bands, which a new agent knows of the next row already."""
    state = health.state and replace(health.state, signals=())
    return repr(state), repr(health.broken.breaks(is_scaled=False))


NAN_THEN_QUIET = [{"actor/pg_loss": math.nan}, *([{"actor/entropy": 0.5}] * 24)]
GRAD_THEN_LOSS = [{"actor/grad_norm": math.nan}, *([{}] * 10), {"actor/pg_loss": math.nan}]


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(0, 50), st.integers(1, 50), st.booleans())
@example(rows=NAN_THEN_QUIET, interrupted_at=25, back_at=50, is_back=False)
@example(rows=NAN_THEN_QUIET, interrupted_at=40, back_at=50, is_back=False)
@example(rows=GRAD_THEN_LOSS, interrupted_at=37, back_at=37, is_back=True)
def test_an_agent_restarted_at_any_row_has_the_same_result(rows, interrupted_at, back_at, is_back):
    """25 quiet rows come first; where ``is_back`` the job goes back some steps later."""
    quiet = [dict.fromkeys(KEYS, 0.5 + 0.01 * (step % 3)) for step in range(25)]
    rank, other = Rank(RunHealth()), Rank(RunHealth())
    for number, row in enumerate(quiet + rows):
        step = number - 5 if is_back and number >= back_at else number
        begin = Rank.clock
        for item in (rank, other):
            Rank.clock = begin
            item.told = step
            item.report_keys(step, row)
            item.health.close({})
        if number == interrupted_at:
            following = RunHealth()
            following.resume(through_json(other.health.save()))
            other.health = following
        assert concluded(rank.health) == concluded(other.health)
    assert repr(rank.health.save()) == repr(other.health.save())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_the_order_each_step_is_taken_once_in_order_and_with_all_its_values(data):
    """Ranks run at most one step apart; readings happen anywhere in between."""
    num_ranks = data.draw(st.integers(1, 3))
    num_steps = data.draw(st.integers(1, 12))
    health = RunHealth()
    ranks = [Rank(health, str(n)) for n in range(num_ranks)]
    at = [0] * num_ranks
    while min(at) < num_steps:
        free = [n for n in range(num_ranks) if at[n] <= min(at) and at[n] < num_steps]
        if data.draw(st.booleans()):
            read(health, *ranks, times=1)
            continue
        n = data.draw(st.sampled_from(free))
        at[n] += 1
        ranks[n].step(at[n], float(at[n] + n))
    for rank in ranks:
        rank.step(num_steps + 1)
    read(health, *ranks)
    offset = (num_ranks - 1) / 2
    expected = [(s, pytest.approx(s + offset)) for s in range(1, num_steps + 1)]
    assert seen(health) == expected
    assert (health.state.row, health.num_late) == (num_steps - 1, 0)
