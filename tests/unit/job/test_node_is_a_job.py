"""What a hub of one node publishes is what that node publishes, field by field."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hang_scene import NUMBER, SECOND, Rank, hold_in
from prometheus_client.parser import text_string_to_metric_families

from bench.metrics_page import names_without_a_hub_series
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.catalogue.spec import by_name
from dfx_agent.commands.hub.shown_ranks import ShownRanks
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.facts.document import dumped
from dfx_agent.facts.measurements import RankDetails
from dfx_agent.facts.steps import SchedTimes
from dfx_agent.hub import sending
from dfx_agent.job.folds import JobFolds
from dfx_agent.node.host import processor_time
from dfx_agent.snapshot import (
    ON_DEMAND,
    EngineFacts,
    Histogram,
    Incident,
    Latency,
    RankRow,
    RunRow,
    Verdict,
)
from dfx_agent.wire import layout
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COUNT,
    FORWARD_SAMPLES,
    GROUP,
    LOOP_LAG,
    NO_STEP,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
    WAIT,
)

NUM_STEPS, STEP_MS = 14, 400
# what a hub does not receive, or rounds
PERMITTED = {
    (RunRow, "judged_seconds"): "each says when it judged itself",
    (RunRow, "scalars"): "only values travel that a judge reads, or that a page always draws",
    (Incident, "id"): "made of its begin, which is rounded before it is sent",
}
# of a rank that nobody looks at, these stay on its node because each would be sent with every step;
# a full row has all
NOT_SENT = {
    "current": "time in the current step, which changes with every poll",
    "scalars": "values of one rank: the hub has the means over ranks",
    "stamps": "two times per stage and step",
    "gauges": "any number of names, which the job chooses",
    "collectives": "six numbers per group and stage",
    "device_stages": "several numbers per stage and device",
    "is_full": "says that the others are missing",
}


def test_the_list_of_fields_that_stay_on_the_node_is_the_code():
    in_the_row = {field.name for field in fields(RankRow)}
    in_details = {field.name for field in fields(RankDetails)}
    assert in_details - {"last", "outside"} == ON_DEMAND  # last: of steps; outside: of no guest
    assert NOT_SENT.keys() == ON_DEMAND | {"is_full"}
    assert in_details < in_the_row
    assert len(PERMITTED) + len(NOT_SENT) <= 10, "a hub and its node show one truth"


@pytest.fixture(autouse=True)
def totals_with_every_report(monkeypatch):
    """Usually they are up to a minute older than the facts beside them."""
    monkeypatch.setattr(sending, "_TOTALS_EVERY_NS", 0)
    monkeypatch.setattr(sending, "_TOTALS_OF_ROLLOUT_EVERY_NS", 0)


@pytest.fixture
def ranks(dfx_dir) -> Iterator[list[Rank]]:
    ranks = [Rank(dfx_dir, rank, 4, framework="verl") for rank in range(4)]
    for rank in ranks:
        began(rank, seconds_ago=60)
    yield ranks
    for rank in ranks:
        rank.dies()


def began(rank: Rank, seconds_ago: int) -> None:
    """Its guest came so long ago."""
    fields = list(layout.PREAMBLE.unpack(rank.path.read_bytes()[: layout.PREAMBLE.size]))
    fields[-2] -= seconds_ago * SECOND
    with rank.path.open("r+b") as file:
        file.write(layout.PREAMBLE.pack(*fields))


class Both:
    """An agent of four ranks, and a hub of this agent alone. Their steps lie in the past."""

    def __init__(self, folder: Path, ranks: list[Rank]) -> None:
        self.agent, self.hub, self.ranks = Agent(Config(str(folder)), reap=False), JobFolds(), ranks
        self.agent.collect_facts("here")
        self.begin_ns = time.monotonic_ns() - NUM_STEPS * STEP_MS * 10**6

    def passes(self, step: int, slow: int = -1, **numbers: float) -> None:
        """``numbers``: of the actor, beside or instead of its usual ones."""
        known = {"grad_norm": 1.0, "entropy": 0.5 - step / 100, "unjudged": 1.0, **numbers}
        for rank in self.ranks:
            work_ms = 300 if rank.rank == slow else 150
            self._writes(rank, step, work_ms, known)

    def _writes(self, rank: Rank, step: int, work_ms: int, numbers: Mapping[str, float]) -> None:
        at = self.begin_ns + (step - 1) * STEP_MS * 10**6

        def span(
            kind: int, name: str, begin_ms: int, end_ms: int, number: int = 0, *,
            is_inside_next: bool = False,
        ) -> None:  # fmt: skip
            ids = (rank.span + 2, rank.span + 1) if is_inside_next else (rank.span + 1, 0)
            rank.span += not is_inside_next
            begin, end = at + begin_ms * 10**6, at + end_ms * 10**6
            rank.segment.emit(begin, end, 8.0, number, *ids, 1, kind, rank.name(name))

        rank.segment.emit(at, at, 0.0, step, 0, 0, 0, STEP, 0)
        span(WAIT, "queue", 10, 20 + step, is_inside_next=True)
        span(STAGE, "rollout", 0, 60)
        rank.span += 1
        span(STAGE, "actor_update", 60, 60 + work_ms)
        span(COLLECTIVE | BLOCKING, "all_reduce@0", 60 + work_ms, 380, step)
        for kind, count in (("prompt", 20.0), ("response", 100.0)):
            rank.segment.emit(at, at, count, step, 0, 0, 1, TOKENS, rank.name(kind))
        rank.segment.emit(at, at, 4.0, step, 0, 0, 1, COUNT, rank.name(FORWARD_SAMPLES))
        rank.segment.emit(at, at, float(step), step, 0, 0, 1, GROUP, rank.name("all_reduce@0"))
        late_ns = 10**7 * step
        rank.segment.emit(at, at + late_ns, late_ns / 1e9, step, 0, 0, 1, LOOP_LAG, 0)
        for key, value in numbers.items():
            rank.segment.emit(at, at, value, step, 0, 0, 0, SCALAR, rank.name(f"actor/{key}"))

    def look(self) -> tuple[RunRow, RunRow]:
        """What the node shows, and the hub."""
        for _ in range(3):
            self.agent.poll()
            for facts in self.agent.facts():
                self.hub.receive(dumped(facts), "here")
            at = time.monotonic_ns(), time.time()
            pair = self.agent.snapshot().runs[0], self.hub.snapshot(*at).runs[0]
        return pair


def differences(one: object, other: object, path: str = "") -> Iterator[str]:
    """Paths at which both differ by more than what is permitted or rounded."""
    if is_dataclass(one) and type(one) is type(other):
        skipped = {name for entry, name in PERMITTED if isinstance(one, entry)}
        skipped |= NOT_SENT.keys() if isinstance(one, RankRow) else set()
        for field in fields(one):
            if field.name not in skipped:
                pair = getattr(one, field.name), getattr(other, field.name)
                yield from differences(*pair, f"{path}.{field.name}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{path}: {len(one)} and {len(other)}"
        for i, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{path}[{i}]")
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key, value in one.items():
            yield from differences(value, other[key], f"{path}[{key}]")
    elif not _is_same(one, other, path):
        yield f"{path}: {one!r:.200} and {other!r:.200}"


def _is_same(one: object, other: object, path: str) -> bool:
    if "_bytes" in path and isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=2e-3)
    if isinstance(one, float) and isinstance(other, float):
        is_close = math.isclose(one, other, abs_tol=0.03) or math.isclose(one, other, rel_tol=2e-3)
        return is_close or (math.isnan(one) and math.isnan(other))
    if isinstance(one, str) and isinstance(other, str):
        return NUMBER.sub("#", one) == NUMBER.sub("#", other)  # figures of it are fields too
    return one == other


def assert_same(node: RunRow, hub: RunRow) -> None:
    """Also with the rows that the hub shows of ranks that somebody looks at."""
    assert "\n".join(differences(node, hub)) == ""
    by_key = {row.key: row for row in node.scalars}
    common = [by_key[row.key] for row in hub.scalars]
    assert "\n".join(differences(common, list(hub.scalars))) == ""
    shown = ShownRanks(lambda _, ranks: [r for r in node.ranks if (r.role, r.rank) in ranks])
    full = shown.full(hub.run, hub.ranks)
    shown.close()
    assert full == node.ranks


def found(run: RunRow, kind: str) -> Verdict:
    (verdict,) = (v for v in run.verdicts if v.kind == kind and v.role in {"trainer", ""})
    return verdict


def test_a_healthy_run(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    for step in range(1, NUM_STEPS + 1):
        both.passes(step)
    node, hub = both.look()
    assert node.signals is not None
    assert len(node.steps) == 8
    assert node.sustained_tokens_ratio == {"trainer": 1.0}
    cell = node.steps[-1].cells[0]
    assert (cell.tokens, cell.num_samples) == ({"prompt": 20.0, "response": 100.0}, 4.0)
    assert all(row.groups and row.event_loop for row in hub.ranks)
    assert cell.split.wait_seconds["queue"].keys() == {"rollout"}
    assert_same(node, hub)


def series(source: Agent | JobFolds) -> dict[tuple[str, str], float]:
    """Series of single ranks, by name and labels."""
    text = PrometheusExporter(source).render(None)[0].decode()
    return {
        (sample.name, str(sorted((k, v) for k, v in sample.labels.items() if k != "node"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "rank" in sample.labels and "reason" not in sample.labels
    }


def test_a_scrape_of_the_hub_has_the_series_of_the_node(dfx_dir, ranks):
    """But for those that the page of metrics names: none of them is a zero."""
    both = Both(dfx_dir, ranks)
    for step in range(1, NUM_STEPS + 1):
        both.passes(step)
    both.look()
    of_node, of_hub = series(both.agent), series(both.hub)
    assert of_hub.keys() <= of_node.keys()
    assert all(value == pytest.approx(of_node[key], rel=2e-3, abs=0.03)
               for key, value in of_hub.items() if "event" not in key[0])  # fmt: skip
    native = {m.sample_name for m in by_name().values() if m.source == "native"}
    missing = {name for name, _ in of_node.keys() - of_hub.keys()} - native
    assert missing
    assert missing <= {*names_without_a_hub_series()}
    assert not {name for name, _ in of_hub} & {*names_without_a_hub_series()}


def test_a_slow_rank(dfx_dir, ranks, monkeypatch):
    slow_pid = ranks[2].owner.pid

    def read_times(pid: int, _thread: int) -> SchedTimes:
        share = 0.8 if pid == slow_pid else 0.4
        return SchedTimes(int(time.monotonic_ns() * share), 0)

    # of a machine without load: the ranks of this scene do not compute
    monkeypatch.setattr(processor_time, "thread_times", read_times)
    monkeypatch.setattr(processor_time, "threads_per_processor", lambda: 1.0)
    monkeypatch.setattr(
        processor_time, "_SLACK_NS", 60 * SECOND
    )  # all steps are before the first poll
    both = Both(dfx_dir, ranks)
    for step in range(1, NUM_STEPS + 1):
        both.passes(step, slow=2)
    node, hub = both.look()
    assert "rank 2" in found(node, "straggler").summary.lower()
    assert_same(node, hub)


def test_a_rank_that_died(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    for step in range(1, 6):
        both.passes(step)
    both.look()
    ranks[1].dies()
    hold_in([rank for rank in ranks if rank.rank != 1], "all_reduce@0", 6)
    node, hub = both.look()
    assert found(node, "crash").ranks == ("1",)
    assert node.incidents
    assert_same(node, hub)


def test_a_rank_that_never_passes_a_step(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    for step in range(1, 6):
        both.passes(step)
    both.ranks = ranks[:3]
    for step in range(6, 10):
        both.passes(step)
    node, hub = both.look()
    assert [row.missing_ranks for row in node.steps][-4:] == [(), ("3",), (), ()]
    assert_same(node, hub)


def entered(rank: Rank, name: str, kind: int, number: int = NO_STEP, *, seconds_ago: int) -> None:
    """It is in this span since then."""
    rank.span += 1
    begin_ns = time.monotonic_ns() - seconds_ago * SECOND
    known = begin_ns, number, rank.span, 0, 1, kind, rank.name(name)
    rank.segment.inflight.enter(*known)


def test_a_rank_that_is_stuck_while_the_others_wait(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    both.begin_ns -= 30 * SECOND
    for step in range(1, 6):
        both.passes(step)
    for rank in ranks:
        entered(rank, "backward", STAGE, 5, seconds_ago=32)
        if rank.rank != 2:
            entered(rank, "all_reduce@0", COLLECTIVE | BLOCKING, 6, seconds_ago=30)
    node, hub = both.look()
    suspicion = found(node, "hang").suspicion  # no stacks, and it was never seen to end backward
    assert suspicion is not None
    assert suspicion.ranks == ("2",)
    assert_same(node, hub)


def test_a_loss_that_is_not_a_number(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    for step in range(1, NUM_STEPS + 1):
        both.passes(step, loss=math.nan if step > 10 else 0.5)
    node, hub = both.look()
    assert found(node, "divergence").state == "found"
    assert_same(node, hub)


def test_a_rank_that_was_started_again(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    for step in range(1, 6):
        both.passes(step)
    ranks[3].dies()
    ranks.append(Rank(dfx_dir, 3, 4, framework="verl"))
    began(ranks[4], seconds_ago=10)
    both.ranks = [*ranks[:3], ranks[4]]
    for step in range(6, NUM_STEPS + 1):
        both.passes(step)
    node, hub = both.look()
    assert node.attempt == 1
    assert_same(node, hub)


def test_a_rank_that_was_detached(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    for step in range(1, 6):
        both.passes(step)
    both.look()
    ranks[3].segment.finish(layout.STATE_DETACHED)
    node, hub = both.look()
    assert [(row.state, row.step) for row in node.ranks][2:] == [("live", 5), ("detached", 5)]
    assert "\n".join(differences(node.ranks, hub.ranks)) == ""


def test_rollout_engines(dfx_dir, ranks):
    both = Both(dfx_dir, ranks)
    for step in range(1, 6):
        both.passes(step)
    engines = tuple(
        EngineFacts(
            replica, "", f"http://127.0.0.1:{8000 + waiting}", "up", 100.0,
            gauges={"waiting_requests": float(waiting)},
            histograms={"e2e_latency_seconds": Histogram((1.0,), (3.0, 4.0), 2.5)},
            latencies={"e2e_latency_seconds": Latency(4.0, 0.6, None, None)},
        )
        for replica, waiting in (("0", 1), ("1", 40))
    )  # fmt: skip
    both.agent._engines.facts = lambda _run: engines
    node, hub = both.look()
    assert hub.engines is not None
    assert [engine.url for engine in hub.engines.replicas] == [engine.url for engine in engines]
    assert [note.kind for note in hub.engines.notes] == ["outlier"]
    assert_same(node, hub)


def test_two_roles(dfx_dir, ranks):
    ranks.append(Rank(dfx_dir, 0, 1, role="rollout"))
    began(ranks[4], seconds_ago=60)
    both = Both(dfx_dir, ranks)
    for step in range(1, NUM_STEPS + 1):
        both.passes(step)
    node, hub = both.look()
    assert {v.role for v in node.verdicts} >= {"trainer", "rollout"}
    assert_same(node, hub)


class Alone:
    """An agent of any job, and a hub of this agent alone."""

    def __init__(self, folder: Path) -> None:
        self.agent, self.hub = Agent(Config(str(folder))), JobFolds()
        self.agent.collect_facts("here")

    look = Both.look


@pytest.mark.parametrize("is_wrong", [False, True])
def test_batches(dfx_dir, monkeypatch, is_wrong):
    torch = pytest.importorskip("torch")
    from batch_scene import NUM_ROWS, Job

    monkeypatch.setenv("DFX_LEDGER_EVERY_STEP", "1")
    job, alone = Job(dfx_dir), Alone(dfx_dir)
    wrong = {"rewards": torch.full((NUM_ROWS,), math.nan)} if is_wrong else {}
    job.steps(6)
    job.steps(6, **wrong)
    node, hub = alone.look()
    assert node.ledger is not None
    assert bool(node.ledger.mismatches) == is_wrong
    # the steps are so short that a hub gets them as the mean of many: those rows differ
    assert hub.ledger == node.ledger
    pair = [next(v for v in run.verdicts if v.kind == "data") for run in (node, hub)]
    assert (pair[0].state == "found") == is_wrong
    assert "\n".join(differences(*pair)) == ""
    ledgers = [[row.ledger for row in run.ranks] for run in (node, hub)]
    assert ledgers[0] == ledgers[1]
    job.end()
