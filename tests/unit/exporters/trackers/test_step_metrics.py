"""The names that ROLL documents, for what any framework logs and the agent measures."""

from dataclasses import replace

import pytest

from dfx_agent.exporters.trackers.step_metrics import step_metrics
from dfx_agent.snapshot import DeviceMemory, HeldMemory, RankRow, StepCell, StepRow, TimeSplit

GIB = 1 << 30


def rank_row(*devices: DeviceMemory) -> RankRow:
    return RankRow(
        role="trainer", rank="0", local_rank=None, world_size=None, node="n", pid=1, attempt=0,
        state="live", begin_seconds=1.0, last_event_seconds=None, step=None,
        step_begin_seconds=None, inflight=(), totals=TimeSplit(), current=TimeSplit(), last=None,
        tokens_total={}, queue_depth={}, policy_version=None, scalars=(), stamps=(),
        num_records=5, num_lost_records=0, num_late_records=0, num_guest_drops=0, devices=devices,
    )  # fmt: skip


def cell(rank, stages, waits=None, tokens=None):
    return StepCell(rank, TimeSplit(10.0, 6.0, 1.0, stages, waits or {}), tokens or {})


def row(role, *cells, seconds=10.0):
    return StepRow(3, role, 5.0, 5.0 + seconds, (), None, cells)


def test_native_keys_stay_as_they_are():
    scalars = {"my/own": 1.0, "actor/ppo_kl": 0.25}
    assert step_metrics("verl", scalars, (), ()).items() >= scalars.items()


def test_what_another_framework_logs_has_roll_s_name_unit_and_sign_too():
    metrics = step_metrics("trl", {"reward": 0.5, "kl": 0.125, "grad_norm": 2.0}, (), ())
    assert metrics["critic/rewards/mean"] == 0.5
    assert metrics["actor_train/grad_norm"] == 2.0
    # ROLL counts the policy's KL the other way round
    assert step_metrics("verl", {"actor/ppo_kl": 0.25}, (), ())["actor/policykl"] == -0.25


def test_a_reducer_behind_the_key_changes_neither_sign_nor_unit():
    assert step_metrics("roll", {"actor/policykl@mean": 0.5}, (), ())["actor/policykl"] == 0.5


def test_what_the_framework_itself_calls_so_wins():
    metrics = step_metrics("roll", {"system/tps": 7.0, "actor/policykl": 0.5}, (
        row("trainer", cell("0", {}, tokens={"response": 100.0})),), ())  # fmt: skip
    assert (metrics["system/tps"], metrics["actor/policykl"]) == (7.0, 0.5)


def test_nothing_measured_is_nothing_named():
    assert step_metrics("trl", {}, (), (rank_row(),)) == {}


def test_times_are_means_over_the_ranks_that_were_there():
    step = row(
        "trainer",
        cell("0", {"rollout": 2.0, "reward": 1.0}, {"queue": {"rollout": 1.0, "": 4.0}}),
        cell("1", {"rollout": 4.0}),
    )
    metrics = step_metrics("", {}, (step,), ())
    assert metrics == pytest.approx(
        {
            "time/step_total": 10.0,
            "time/rollout/total": 3.5,
            "time/rollout/execute": 3.0,
            "time/reward/total": 1.0,
            "time/reward/execute": 1.0,
        }
    )


def test_an_update_has_the_time_of_its_parts():
    parts = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    waits = {"collective": {"backward": 1.0}}
    metrics = step_metrics(
        "", {}, (row("t", cell("0", {"actor_update": 0.25} | parts, waits)),), ()
    )
    assert metrics["time/actor_update/total"] == 4.75
    assert metrics["time/actor_update/execute"] == 3.75
    assert metrics["time/backward/total"] == 3.0


def test_parts_of_two_updates_are_nobody_s():
    stages = {"actor_update": 0.25, "critic_update": 0.5, "forward": 1.0}
    metrics = step_metrics("", {}, (row("t", cell("0", stages)),), ())
    assert metrics.keys() == {"time/step_total", "time/forward/total", "time/forward/execute"}
    del stages["forward"]
    metrics = step_metrics("", {}, (row("t", cell("0", stages)),), ())
    assert (metrics["time/actor_update/total"], metrics["time/critic_update/total"]) == (0.25, 0.5)


def test_a_stage_only_waited_in_has_no_execute():
    step = row("trainer", cell("0", {}, {"queue": {"rollout": 1.0}}))
    metrics = step_metrics("", {}, (step,), ())
    assert metrics["time/rollout/total"] == 1.0
    assert "time/rollout/execute" not in metrics


def test_roles_that_see_the_same_step_do_not_add_up():
    few = {"response": 10.0}
    driver = row("driver", cell("0", {"rollout": 5.0, "reward": 0.5}, tokens=few), seconds=20.0)
    tokens = {"prompt": 40.0, "response": 60.0}
    stages = {"rollout": 4.0, "reward": 1.0}
    actor = row("actor", cell("0", stages, tokens=tokens), cell("1", {}, tokens=tokens))
    metrics = step_metrics("", {}, (actor, driver), ())
    assert metrics == step_metrics("", {}, (driver, actor), ())
    assert metrics["time/reward/total"] == 1.0
    assert metrics["time/rollout/total"] == 5.0
    assert metrics["time/step_total"] == 20.0
    assert (metrics["tokens/prompt"], metrics["tokens/response"]) == (80.0, 120.0)
    assert metrics["system/tps"] == 20.0


def test_memory_is_in_gib_mean_over_ranks_and_only_what_is_known():
    device = DeviceMemory("cuda:3", 2 * GIB, None, stage_peak_bytes={"rollout": 6 * GIB})
    other = DeviceMemory("cuda:3", 4 * GIB, None, stage_peak_bytes={"rollout": 8 * GIB})
    assert step_metrics("", {}, (), (rank_row(device), rank_row(other))) == {
        "memory/step/end/onload/allocated/3": 3.0,
        "memory/rollout/end/onload/max_allocated/3": 7.0,
    }


def test_what_was_held_where_states_came_and_went_has_roll_s_names():
    rows = [
        replace(
            rank_row(),
            held=(
                HeldMemory("actor_update", "start/offload", "cuda:3", 1 * GIB, 2 * GIB),
                HeldMemory("actor_update", "end/offload", "cuda:3", more * GIB),
                HeldMemory("actor_update", "start/offload", "host", None, None, 5 * GIB, 6 * GIB),
                HeldMemory("actor_update", "end/offload", "host", None, None, 7 * GIB, 8 * GIB),
            ),
        )
        for more in (10, 30)
    ]
    assert step_metrics("", {}, (), rows) == {
        "memory/actor_update/start/offload/allocated/3": 1.0,
        "memory/actor_update/start/offload/reserved/3": 2.0,
        "memory/actor_update/end/offload/allocated/3": 20.0,
        "memory/cpu/actor_update/end/rss": 7.0,
        "memory/cpu/actor_update/end/vms": 8.0,
    }
