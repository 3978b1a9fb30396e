"""The run's ledger over real segments: what is compared, found, skipped and left alone."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from batch_scene import NUM_ROWS, Job, samples  # noqa: E402

from dfx_agent.agent.agent import Agent  # noqa: E402
from dfx_agent.agent.config import Config  # noqa: E402
from dfx_agent.exporters.prometheus.exporter import run_samples  # noqa: E402
from dfx_agent.shim.ledger import observe  # noqa: E402
from dfx_agent.snapshot import RunRow, Verdict  # noqa: E402


@pytest.fixture(autouse=True)
def _every_step(monkeypatch) -> None:
    """Steps of these jobs take no time at all: a guest would look at few of them."""
    monkeypatch.setenv("DFX_LEDGER_EVERY_STEP", "1")


@pytest.fixture
def agent(dfx_dir) -> Iterator[Agent]:
    agent = Agent(Config(str(dfx_dir)))
    yield agent
    agent._folder.close()


def run_of(agent: Agent) -> RunRow:
    agent.poll()
    agent.poll()
    (run,) = agent.snapshot().runs
    return run


def verdict_of(agent: Agent) -> Verdict:
    (verdict,) = [row for row in run_of(agent).verdicts if row.kind == "data"]
    return verdict


def counts(agent: Agent) -> dict:
    return {(row.boundary, row.kind): row.count for row in run_of(agent).ledger.mismatches}


def test_a_sound_job_is_clear(dfx_dir, agent):
    job = Job(dfx_dir)
    job.steps(12)
    verdict = verdict_of(agent)
    assert (verdict.state, verdict.step) == ("clear", 10)
    assert "rollout to update" in verdict.summary
    run = run_of(agent)
    assert (run.ledger.num_judged_steps, run.ledger.num_skipped_steps) == (9, 1)
    assert run.ledger.mismatches == ()
    rows = {row.boundary: row for row in run.ranks[0].ledger}
    assert (rows["rollout"].num_samples, rows["rollout"].num_crossings) == (8, 12)
    assert rows["update"].mask_ratio == pytest.approx(24 / 48)


def test_no_ledger_no_verdict(dfx_dir, agent):
    job = Job(dfx_dir)
    job.begin()
    run = run_of(agent)
    assert run.ledger is None
    assert [row for row in run.verdicts if row.kind == "data"] == []


WRONG = samples(0, NUM_ROWS)
CORRUPTED_ID = WRONG["sample_id"].clone()
CORRUPTED_ID[3] = 999
SHORTER = WRONG["response_mask"].clone()
SHORTER[4, 4] = False
PADDED = torch.nn.functional.pad(WRONG["response_mask"], (0, 2))


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"rewards": samples(0, 8, 7)["rewards"].roll(1)}, "moved", "rewards belong to other"),
        ({"sample_id": CORRUPTED_ID}, "ids", "sample_id are not the same"),
        ({"response_mask": SHORTER}, "mask", "response_mask counts 51 tokens instead of 52"),
        ({"response_mask": PADDED}, "shapes", "the same columns and samples have other shapes"),
        (samples(0, 6, 7), "samples", "14 samples instead of 16"),
        ({"rewards": torch.full((8,), float("nan"))}, "nonfinite", "rewards holds NaN or Inf in 8"),
        ({"old_log_probs": torch.zeros(8, 4)}, "lengths", "old_log_probs has a length"),
        ({"rewards": samples(0, 8, 7)["rewards"].float()}, "schema", "columns or their types"),
    ],
)
def test_what_goes_wrong_is_named(dfx_dir, agent, changes, cause, words):
    job = Job(dfx_dir)
    job.steps(6)
    assert verdict_of(agent).state == "clear"
    job.steps(1, **changes)
    job.steps(2)
    verdict = verdict_of(agent)
    assert (verdict.state, verdict.step) == ("found", 7)
    ranks = () if cause == "schema" else ("0",)  # of two that differ none can be blamed
    assert (verdict.cause, verdict.stage, verdict.ranks) == (cause, "update", ranks)
    assert words in verdict.summary
    assert verdict.summary.startswith("Rank 0, step 7" if ranks else "Step 7")
    assert counts(agent)["update", cause] == 1
    job.steps(10)
    assert verdict_of(agent).state == "clear"


def test_a_fault_that_stays_does_not_become_the_habit(dfx_dir, agent):
    job = Job(dfx_dir)
    job.steps(6)
    for _ in range(40):
        job.steps(1, **samples(0, 6))
        agent.poll()
    verdict = verdict_of(agent)
    assert (verdict.state, verdict.cause) == ("found", "samples")
    assert "first seen in step 7" in verdict.evidence[0]


def test_a_batch_that_is_always_padded_is_no_fault(dfx_dir, agent):
    job = Job(dfx_dir)
    for _ in range(8):
        job.begin()
        job.crosses("rollout")
        for number, rank in enumerate(job.ranks):
            batch = samples(number * NUM_ROWS, NUM_ROWS, job.step)
            padded = torch.nn.functional.pad(batch["response_mask"], (0, 2))
            observe(rank, "update", {**batch, "response_mask": padded})
    assert verdict_of(agent).state != "found"


def test_the_checksum_of_shapes_is_exported_by_boundary(dfx_dir, agent):
    job = Job(dfx_dir)
    job.steps(2, response_mask=PADDED)
    name = "dfx_ledger_shapes_checksum"
    rows = run_samples(run_of(agent), frozenset({name}))[name]
    by_rank = {}
    for labels, value in rows:
        by_rank.setdefault(labels["rank"], {})[labels["boundary"]] = value
    assert by_rank["0"]["rollout"] != by_rank["0"]["update"]
    assert by_rank["1"]["rollout"] == by_rank["1"]["update"] > 0


def test_boundaries_with_other_id_columns_say_nothing_about_rows_that_moved(dfx_dir, agent):
    job = Job(dfx_dir)
    for _ in range(6):
        job.begin()
        job.crosses("rollout")
        for number, rank in enumerate(job.ranks):
            batch = samples(number * NUM_ROWS, NUM_ROWS, job.step)
            batch["uid"] = batch.pop("sample_id") // 2
            observe(rank, "update", batch)
    assert verdict_of(agent).state == "clear"


def test_a_filter_that_was_always_there_is_no_fault(dfx_dir, agent):
    job = Job(dfx_dir)
    job.steps(12, **samples(0, 6))
    verdict = verdict_of(agent)
    assert verdict.state == "insufficient evidence"
    assert "14 samples instead of 16" in verdict.summary
    assert counts(agent) == {}


def test_samples_may_change_hands(dfx_dir, agent):
    job = Job(dfx_dir)
    for step in range(1, 10):
        job.begin()
        job.crosses("rollout")
        spread = samples(0, 16, job.step)
        order = torch.randperm(16, generator=torch.Generator().manual_seed(step))
        for number, rank in enumerate(job.ranks):
            rows = order[number::2]
            observe(rank, "update", {name: column[rows] for name, column in spread.items()})
    assert verdict_of(agent).state == "clear"
    assert counts(agent) == {}


def test_a_driver_and_the_ranks_it_serves_are_compared_and_replicas_count_once(dfx_dir, agent):
    driver, workers = Job(dfx_dir, 1, "driver"), Job(dfx_dir, 4)
    for _ in range(9):
        driver.begin()
        workers.begin()
        whole = samples(0, 16, driver.step)
        observe(driver.ranks[0], "rollout", whole)
        for number, rank in enumerate(workers.ranks):  # two tensor parallel ranks for each half
            rows = slice(0, 8) if number < 2 else slice(8, 16)
            part = {name: column[rows] for name, column in whole.items()}
            if driver.step == 7 and number >= 2:
                part["rewards"] = part["rewards"].roll(1)
            observe(rank, "update", part)
    verdict = verdict_of(agent)
    assert (verdict.state, verdict.cause, verdict.step) == ("found", "moved", 7)
    assert counts(agent) == {("update", "moved"): 1}


def test_one_rank_of_three_with_other_columns_is_blamed(dfx_dir, agent):
    job = Job(dfx_dir, num_ranks=3)
    job.steps(2)
    job.steps(3, rewards=torch.zeros(NUM_ROWS))
    verdict = verdict_of(agent)
    assert (verdict.cause, verdict.ranks) == ("schema", ("0",))


def test_ranks_on_other_nodes_are_not_missing_samples(dfx_dir, agent):
    job = Job(dfx_dir, num_ranks=3, world_size=6)
    for _ in range(9):
        job.begin()
        job.crosses("rollout")
        for number, rank in enumerate(job.ranks):
            here = job.step < 7  # later all of them are sent here from other nodes
            first = number * NUM_ROWS if here else (number + job.step) * 100
            observe(rank, "update", samples(first, NUM_ROWS, job.step))
    assert counts(agent) == {}


def test_steps_with_lost_records_are_skipped_and_counted(dfx_dir, agent, monkeypatch):
    monkeypatch.setenv("DFX_RING_RECORDS", "64")
    job = Job(dfx_dir)
    job.steps(4)
    run = run_of(agent)
    assert run.ledger is None or run.ledger.mismatches == ()
    for _ in range(6):
        job.steps(1)
        agent.poll()
    assert counts(agent) == {}
    assert run_of(agent).ledger.num_skipped_steps > 0


def test_a_batch_outside_any_step_is_judged_by_itself(dfx_dir, agent):
    job = Job(dfx_dir, 1)
    batch = {"rewards": torch.tensor([float("inf"), 1.0])}
    contextvars.Context().run(observe, job.ranks[0], "rollout", batch)
    verdict = verdict_of(agent)
    assert (verdict.state, verdict.cause, verdict.step) == ("found", "nonfinite", None)
    assert "in 1 samples" in verdict.summary
