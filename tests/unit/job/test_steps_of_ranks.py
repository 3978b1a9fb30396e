"""When a step of a role is over: all who live have passed it, or some are far ahead."""

from __future__ import annotations

import pytest

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.facts.steps import SUPERSEDED_BY, RankStep, Step
from dfx_agent.hub.clocks import OWN_CLOCKS
from dfx_agent.job.steps import JobSteps


def told(number: int, *labels: str, begin: float = 0.0) -> Step:
    """A step of one second, which these ranks have passed."""
    ranks = {label: RankStep(1.0, 0.0, {("stage", "rollout"): 0.5}, None) for label in labels}
    return Step(number, begin or 100.0 + number, 0, ranks)


def closed(steps: JobSteps, *now: int | None, ended: dict[str, int | None] | None = None) -> None:
    """Living ranks are in these steps now."""
    steps.close({str(rank): step for rank, step in enumerate(now)}, ended or {})


def add(steps: JobSteps, step: Step, node: str = "a") -> None:
    steps.add(node, step, OWN_CLOCKS, str)


def shown(steps: JobSteps) -> dict[int, str]:
    return {row.step: "".join(cell.rank for cell in row.cells) for row in steps.rows()}


@pytest.mark.parametrize(
    ("cells", "now", "is_shown", "is_judged"),
    [
        ("01", (6, 6), True, True),
        ("0", (6, 5), False, False),
        ("0", (6, 6), True, False),  # it went past without a cell
        ("0", (5 + SUPERSEDED_BY - 1, 5), False, False),
        ("0", (5 + SUPERSEDED_BY, 5), True, False),
        ("0", (6, None), False, False),
        ("0", (None, None), False, False),  # both are new: nobody knows a step yet
        ("0", (), True, False),
    ],
)
def test_it_stays_open_while_somebody_is_in_it(cells, now, is_shown, is_judged):
    steps = JobSteps("trainer")
    add(steps, told(5, *cells))
    closed(steps, *now)
    assert shown(steps) == ({5: cells} if is_shown else {})
    assert [step.step for step in steps.steps] == ([5] if is_judged else [])


def test_a_rank_that_is_far_behind_is_missing_until_it_comes():
    steps = JobSteps("trainer")
    add(steps, told(5, "0"))
    closed(steps, 7, 5)
    assert steps.rows()[0].missing_ranks == ("1",)
    add(steps, told(5, "1"))
    closed(steps, 7, 6)
    (row,) = steps.rows()
    assert ([cell.rank for cell in row.cells], row.missing_ranks) == (["0", "1"], ())
    assert [step.step for step in steps.steps] == [5], "judged once all have passed it"


def test_of_a_rank_that_died_in_a_step_what_it_did_is_added():
    steps = JobSteps("trainer")
    add(steps, told(5, "0"))
    closed(steps, 6, ended={"1": 5})
    assert steps.rows()[0].missing_ranks == ("1",)
    add(steps, told(5, "1"))
    closed(steps, 6, ended={"1": 5})
    assert shown(steps) == {5: "01"}
    assert steps.rows()[0].missing_ranks == ()
    assert [sorted(step.ranks) for step in steps.steps] == [["0"]]


def test_what_a_node_sends_again_changes_nothing():
    steps = JobSteps("trainer")
    for _ in range(2):
        for number in (5, 6):
            add(steps, told(number, "0"))
            add(steps, told(number, "1"), node="b")
            closed(steps, number + 1, number + 1)
    assert [step.step for step in steps.steps] == [5, 6]
    assert shown(steps) == {5: "01", 6: "01"}


def test_a_job_that_goes_back_shows_a_step_once():
    steps = JobSteps("trainer")
    for number, begin in ((5, 105.0), (6, 106.0), (5, 110.0)):
        add(steps, told(number, "0", begin=begin))
        closed(steps, number + 1)
    assert [(row.step, row.begin_seconds) for row in steps.rows()] == [(6, 106.0), (5, 110.0)]


def test_rows_of_many_ranks_are_fewer():
    steps, ranks = JobSteps("trainer"), [str(rank) for rank in range(128)]
    for number in range(300):
        add(steps, told(number, *ranks))
        steps.close(dict.fromkeys(ranks, number + 1), {})
    assert len(steps.rows()) == 32
    few = JobSteps("trainer")
    for number in range(300):
        add(few, told(number, "0"))
        closed(few, number + 1)
    assert len(few.rows()) == 200


def test_steps_that_one_rank_never_passes_are_bounded():
    steps = JobSteps("trainer")
    for number in range(100):
        add(steps, told(number, "0"))
        closed(steps, number + 1, 0)
    assert len(steps._open) == 64
    assert not steps.steps


def test_a_process_that_ended_long_ago_leaves_the_rows():
    steps = JobSteps("trainer")
    add(steps, told(5, "0", "p7"))
    add(steps, told(6, "p7"))
    steps.close({"0": 6, "p7": 7}, {})
    steps.remove("p7")
    assert shown(steps) == {5: "0"}


def test_a_run_without_anybody_is_in_its_first_attempt():
    run = LocalRun("r")
    run.judge_reading(1)
    assert run.job.rows.run((), ()).attempt == 0
