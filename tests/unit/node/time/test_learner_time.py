"""The parts of a learner's iteration: each instant in one of them, the wall no sum of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfx_agent.catalogue.learner_time import (
    COLLECTOR_PARTS,
    LEARNER_PARTS,
    collector_seconds,
    learner_seconds,
    pipeline_seconds,
)
from dfx_agent.node.time.account import TimeAccount
from dfx_agent.snapshot import TimeSplit
from dfx_agent.wire.records import STAGE, WAIT

MS = 1_000_000
STAGES = ["h2d", "actor_update", "backward", "param_sync", "weight_sync", "inference", "env_step"]
WAITS = [
    "collector", "replay_batch", "barrier", "sync_coordination", "collective", "logger", "policy",
    "remote",
]  # fmt: skip
SLOW = settings(max_examples=200, deadline=None)

Row = tuple[int, int, int, str, int, int]  # span, parent, kind, name, begin_ns, end_ns


@st.composite
def rows(draw, *, num_threads: int) -> tuple[list[Row], int]:
    """Nested spans of some threads that run at the same time, and when the last one ends."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    found: list[Row] = []

    def fill(begin: int, end: int, parent: int, depth: int) -> None:
        at = begin
        while depth < 4 and at < end and rng.random() < 0.8:
            at = rng.randint(at, end)
            until = rng.randint(at, end)
            kind = rng.choice([STAGE, WAIT])
            span = len(found) + 1
            found.append(
                (span, parent, kind, rng.choice(STAGES if kind == STAGE else WAITS), at, until)
            )
            fill(at, until, span, depth + 1)
            at = until

    wall = rng.randint(1, 1000) * MS
    for _ in range(num_threads):
        fill(0, wall, 0, 0)
    return found, wall


def accounted(found: list[Row], wall_ns: int) -> TimeSplit:
    account = TimeAccount(0)
    by_end = sorted(found, key=lambda row: (row[5], -row[0]))
    account.add({span: (begin, span, end, parent, kind, name)
                 for span, parent, kind, name, begin, end in by_end})  # fmt: skip
    account.advance(wall_ns)
    return account.totals().as_seconds()


@pytest.mark.parametrize("num_threads", [1, 3])
@SLOW
@given(st.data())
def test_each_instant_is_in_one_part_and_the_wall_is_measured(num_threads, data):
    found, wall_ns = data.draw(rows(num_threads=num_threads))
    split = accounted(found, wall_ns)
    parts = learner_seconds("learner", split, split)
    assert parts is not None
    assert tuple(parts) == LEARNER_PARTS
    assert min(parts.values()) >= 0
    assert split.wall_seconds == pytest.approx(wall_ns / 1e9)
    assert sum(parts.values()) == pytest.approx(split.wall_seconds, abs=1e-9)
    assert pipeline_seconds(parts) == pytest.approx(
        parts["h2d"] + parts["train"] + parts["param_sync"] + parts["weight_sync"]
    )
    of_collector = collector_seconds("collector", split)
    assert of_collector is not None
    assert tuple(of_collector) == COLLECTOR_PARTS
    if num_threads == 1:
        assert sum(of_collector.values()) == pytest.approx(split.wall_seconds, abs=1e-9)


@SLOW
@given(st.data())
def test_a_wait_is_never_merged_with_another_part(data):
    """Each of the four is exactly its own kind, whatever lies around it or in it."""
    found, wall_ns = data.draw(rows(num_threads=1))
    split = accounted(found, wall_ns)
    parts = learner_seconds("learner", split, split)
    assert parts is not None

    def waited(kind: str) -> float:
        return sum(split.wait_seconds.get(kind, {}).values())

    assert parts["collector_wait"] == pytest.approx(waited("collector"))
    assert parts["replay_batch_wait"] == pytest.approx(waited("replay_batch"))
    assert parts["rank_barrier"] == pytest.approx(waited("barrier"))
    assert parts["sync_coordination"] == pytest.approx(waited("sync_coordination"))


def test_training_is_compute_alone():
    waits = {
        "collective": {"backward": 1.0, "weight_sync": 2.0, "inference": 4.0, "": 8.0},
        "barrier": {"actor_update": 16.0},
        "remote": {"weight_sync": 32.0, "actor_update": 64.0},
        "logger": {"": 128.0},
    }
    stages = {"actor_update": 0.25, "backward": 0.5, "inference": 256.0}
    wall = sum(stages.values()) + sum(n for of_kind in waits.values() for n in of_kind.values())
    split = TimeSplit(wall, sum(stages.values()), 0.0, stages, waits)
    assert learner_seconds("learner", split, split) == {
        "collector_wait": 0.0, "replay_batch_wait": 0.0, "rank_barrier": 16.0,
        "sync_coordination": 0.0, "h2d": 0.0, "train": 0.75, "param_sync": 1.0,
        "weight_sync": 2.0 + 32.0, "other": 4.0 + 8.0 + 64.0 + 128.0 + 256.0,
    }  # fmt: skip


def test_stages_that_overlap_share_the_time():
    split = TimeSplit(10.0, 6.0, 4.0, {"h2d": 6.0, "backward": 3.0}, {})
    parts = learner_seconds("learner", split, split)
    assert parts is not None
    assert (parts["h2d"], parts["train"], parts["other"]) == pytest.approx((4.0, 2.0, 4.0))


@pytest.mark.parametrize(
    ("role", "kind", "is_learner"),
    [
        ("learner", "barrier", True),  # one that has not waited yet
        ("trainer", "collector", True), ("actor", "replay_batch", True),
        # trainers of other frameworks have barriers too
        ("trainer", "barrier", False), ("trainer", "queue", False), ("collector", "policy", False),
    ],
)  # fmt: skip
def test_who_is_a_learner(role, kind, is_learner):
    so_far = TimeSplit(1.0, 0.0, 0.0, {}, {kind: {"": 1.0}})
    parts = learner_seconds(role, TimeSplit(1.0, 0.0, 1.0), so_far)
    assert (parts is not None) == is_learner
    # what this rank does not have is 0, not missing: boards stack all parts of all ranks
    assert parts is None or parts == dict.fromkeys(LEARNER_PARTS, 0.0) | {"other": 1.0}
    assert (collector_seconds(role, so_far) is not None) == (role == "collector")
