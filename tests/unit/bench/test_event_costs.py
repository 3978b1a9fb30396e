"""What a record says about the guest's work, and what a step of such records costs."""

from collections import Counter

import pytest

from bench.event_costs import EventCosts, Step, accounted_ns, events_of, own_cost
from dfx_agent.wire.records import (
    BLOCKING,
    CALIBRATION,
    COLLECTIVE,
    COLLECTIVE_WAIT,
    COUNT,
    FAILED,
    GAUGE,
    GROUP,
    SCALAR,
    STAGE,
    STEP,
)


def events(kind: int, name: str = "") -> list[str]:
    return list(events_of((1, 0, 0, 0.0, 7, 0, 0, 0, kind, 1, 1), name))


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (STAGE, "rollout", ["stage"]),
        (STAGE | FAILED, "backward", ["stage"]),
        (STAGE, "forward", ["stage", "forward of the root"]),
        (STEP, "", ["set_step"]),
        (SCALAR, "actor/ppo_kl", ["scalar"]),
        (SCALAR, "torch/actor/grad_norm", ["clip_grad_norm_"]),
        (COUNT, "micro_batches", ["backward"]),
        (COUNT, "optimizer_steps", ["optimizer step"]),
        (COUNT, "collective_bytes", ["count"]),
        (COLLECTIVE | BLOCKING, "all_gather@12", ["all_reduce"]),
        (COLLECTIVE, "all_gather@12", ["all_reduce, async, and its wait"]),
        (COLLECTIVE | BLOCKING, "barrier@0", ["barrier"]),
        (COLLECTIVE | BLOCKING, "ddp_gradients@0", ["last gradient of DDP"]),
    ],
)
def test_every_record_of_the_training_thread_has_a_cost(kind, name, expected) -> None:
    assert events(kind, name) == expected


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SCALAR, "torch/loss"),  # of the backward hook
        (SCALAR, "torch/critic/lr"),  # of the optimizer hook
        (COLLECTIVE_WAIT, "all_gather@12"),  # of the asynchronous collective
        (GROUP, "0"),
        (GAUGE, "guest/overhead_ratio"),
        (CALIBRATION, "step"),
    ],
)
def test_parts_of_other_events_and_the_own_thread_are_not_counted_again(kind, name) -> None:
    assert events(kind, name) == []


def test_own_cost_is_that_of_the_rank_with_the_most_events() -> None:
    costs = EventCosts({"stage": 2_000.0, "count": 500.0}, {}, telemetry_ns=20_000.0)
    quiet = [Step(10_000_000, Counter(stage=1))] * 3
    busy = [Step(10_000_000, Counter(stage=4, count=4))] * 3
    assert accounted_ns(busy[0], costs) == 10_000.0
    row = own_cost("job", [quiet, busy], costs, "2 ranks")
    assert row.value == pytest.approx(0.1)
    assert row.baseline is not None
    assert row.baseline.value == pytest.approx(1.6)
    assert row.bar is not None
    assert row.bar.is_met(row.value)
