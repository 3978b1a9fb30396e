"""The parts of a weight sync at /metrics: of the sender's stages, and as a framework tells them."""

from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import Moments, RankRow, RunRow, ScalarRow, TimeSplit

SYNC = frozenset({"dfx_weight_update_seconds", "dfx_weight_sync_bytes"})
SPLIT = TimeSplit(
    wall_seconds=4.0,
    stage_seconds={"weight_sync": 0.1, "weight_sync_pause": 0.25, "weight_sync_transfer": 0.5},
    wait_seconds={"remote": {"weight_sync_transfer": 1.5, "rollout": 9.0}, "queue": {"": 3.0}},
)


def told(key, metric, value, **labels):
    return ScalarRow(key, metric, labels, 7, 200.0, Moments(1, value, value, value))


def samples(last, *scalars):
    rank = RankRow(
        "trainer", "0", 0, 1, "node-a", 1, 0, "live", 1.0, 2.0, 7, 1.0, (),
        TimeSplit(), TimeSplit(), last, {}, {}, None, scalars, (), 0, 0, 0, 0,
    )  # fmt: skip
    rows = run_samples(RunRow("r", "verl", 0, 1.0, (rank,), (), ()), SYNC)
    return {
        (name, labels.get("part", ""), labels["receiver"]): value
        for name, found in rows.items()
        for labels, value in found
    }


def test_the_sender_s_stages_are_the_parts_and_waits_in_them_count():
    assert samples(SPLIT) == {
        ("dfx_weight_update_seconds", "pause", ""): 0.25,
        ("dfx_weight_update_seconds", "transfer", ""): 2.0,
    }


def test_a_measured_value_wins_over_a_reported_one():
    parts = [
        told(f"timing_s/weight_sync_{part}", "dfx_weight_update_seconds", 9.0, part=part)
        for part in ("pause", "load")
    ]
    found = samples(SPLIT, *parts)
    assert found["dfx_weight_update_seconds", "pause", ""] == 0.25
    assert found["dfx_weight_update_seconds", "load", ""] == 9.0


def test_each_receiver_has_its_own():
    one = {"part": "transfer", "receiver": "1"}
    rows = (
        told("weight_sync/replica_1/transfer_seconds", "dfx_weight_update_seconds", 1.9, **one),
        told("weight_sync/replica_1/bytes", "dfx_weight_sync_bytes", 4e6, receiver="1"),
        told("checkpoint_engine/payload_mbytes", "dfx_weight_sync_bytes", 4e6),
    )
    found = samples(SPLIT, *rows)
    assert found["dfx_weight_update_seconds", "transfer", "1"] == 1.9
    assert found["dfx_weight_update_seconds", "transfer", ""] == 2.0
    assert found["dfx_weight_sync_bytes", "", "1"] == found["dfx_weight_sync_bytes", "", ""] == 4e6


def test_a_rank_without_weight_sync_has_no_series():
    assert samples(TimeSplit(stage_seconds={"rollout": 1.0})) == {}
    assert samples(None) == {}
