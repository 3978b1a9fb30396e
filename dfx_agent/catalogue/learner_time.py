"""Where one iteration of an off-policy learner went, per rank, and where its collector's time.

The parts and their meaning are those of UniLab's log (its "off-policy timing fields"): four waits
that are never merged, work, and the wall. Each instant is in one part, so the parts are exactly the
wall; the wall itself is measured, from step to step, and no sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dfx_agent.catalogue.spec import PER_RANK, Metric
from dfx_agent.snapshot import RankRow
from dfx_agent.snapshot.time import TimeSplit

OTHER = "other"
LEARNER_PARTS = (
    "collector_wait", "replay_batch_wait", "rank_barrier", "sync_coordination",
    "h2d", "train", "param_sync", "weight_sync", OTHER,
)  # fmt: skip
COLLECTOR_PARTS = ("weight_sync", "action_select", "env_step", "replay", "sync_coordination", OTHER)

_TRAIN = (
    "actor_update", "critic_update", "target_update", "advantage", "forward", "backward",
    "optimizer",
)  # fmt: skip
_PIPELINE = ("h2d", "train", "param_sync", "weight_sync")
_LEARNER_STAGES = dict.fromkeys(_TRAIN, "train") | {
    "h2d": "h2d", "param_sync": "param_sync", "weight_sync": "weight_sync",
}  # fmt: skip
_LEARNER_WAITS = {
    "collector": "collector_wait",
    "replay_batch": "replay_batch_wait",
    "barrier": "rank_barrier",
    "sync_coordination": "sync_coordination",
}
# only a learner waits for these
_LEARNER_ONLY = frozenset({"collector", "replay_batch"})
_COLLECTOR_STAGES = {part: part for part in COLLECTOR_PARTS if part != OTHER}
_COLLECTOR_WAITS = {"policy": "action_select", "sync_coordination": "sync_coordination"}


def learner_seconds(role: str, step: TimeSplit, so_far: TimeSplit) -> dict[str, float] | None:
    """LEARNER_PARTS -> seconds of one step, their sum its wall; None: this is no learner.

    A part that a rank does not have is 0, as in UniLab's log. ``so_far`` is the time of the whole
    process. Stages that overlapped in threads share the time in which any was active.
    """
    if role != "learner" and not _LEARNER_ONLY & so_far.wait_seconds.keys():
        return None
    parts = dict.fromkeys(LEARNER_PARTS, 0.0)
    all_stages = sum(step.stage_seconds.values())
    share = step.active_seconds / all_stages if all_stages else 0.0
    for stage, seconds in step.stage_seconds.items():
        parts[_LEARNER_STAGES.get(stage, OTHER)] += seconds * share
    for kind, stage, seconds in _waits(step):
        parts[_part_of_wait(kind, stage)] += seconds
    parts[OTHER] += step.idle_seconds
    return parts


def pipeline_seconds(parts: Mapping[str, float] | None) -> float | None:
    """A learner's own work: copy to the device, train, synchronise, publish."""
    return None if parts is None else sum(parts[part] for part in _PIPELINE)


def collector_seconds(role: str, so_far: TimeSplit) -> dict[str, float] | None:
    """COLLECTOR_PARTS -> seconds, which never decrease; None: this is no collector."""
    if role != "collector":
        return None
    parts = dict.fromkeys(COLLECTOR_PARTS, 0.0)
    for stage, seconds in so_far.stage_seconds.items():
        parts[_COLLECTOR_STAGES.get(stage, OTHER)] += seconds
    for kind, stage, seconds in _waits(so_far):
        parts[_COLLECTOR_WAITS.get(kind) or _COLLECTOR_STAGES.get(stage, OTHER)] += seconds
    parts[OTHER] += so_far.idle_seconds
    return parts


def _waits(split: TimeSplit) -> Iterator[tuple[str, str, float]]:
    for kind, stages in split.wait_seconds.items():
        for stage, seconds in stages.items():
            yield kind, stage, seconds


def _part_of_wait(kind: str, stage: str) -> str:
    """Training is compute only: collectives in it bring the ranks' parameters together."""
    around = _LEARNER_STAGES.get(stage, OTHER)
    if kind in _LEARNER_WAITS:
        return _LEARNER_WAITS[kind]
    if around == "train":
        return "param_sync" if kind == "collective" else OTHER
    return around


def _learner(rank: RankRow) -> dict[str, float] | None:
    return None if rank.last is None else learner_seconds(rank.role, rank.last, rank.totals)


LEARNER_SECONDS = Metric(
    "dfx_rank_learner_seconds", "gauge", "seconds", (*PER_RANK, "part"),
    "Where the learner's last iteration went; each instant is in one part, together "
    "they are dfx_rank_step_seconds. collector_wait: blocked for data, without logging, handshake "
    "and barriers. replay_batch_wait: for the batch to be packed and on the device, 0 on a "
    "prefetch hit. rank_barrier: for other ranks, before and after training. sync_coordination: "
    "handshake with the collector. h2d: copy to the device by the learner's own thread. train: "
    "pure compute. param_sync: gradients or parameters brought together, with the wait in it. "
    "weight_sync: publishing weights. other: inference, logging, checkpoints, what nobody marked.",
    "derived", subject="guest", value=_learner,
)  # fmt: skip
LEARNER_PIPELINE_SECONDS = Metric(
    "dfx_rank_learner_pipeline_seconds", "gauge", "seconds", PER_RANK,
    "The learner's own work in its last iteration: h2d + train + param_sync + weight_sync of "
    "dfx_rank_learner_seconds.", "derived",
    subject="guest", value=lambda rank: pipeline_seconds(_learner(rank)),
)  # fmt: skip
COLLECTOR_SECONDS = Metric(
    "dfx_rank_collector_seconds", "counter", "seconds", (*PER_RANK, "part"),
    "Where the collector's time went. weight_sync: reading new weights. action_select: until the "
    "learner's actions are there. env_step: in the environment. replay: writing transitions. "
    "sync_coordination: asking the learner. other: what nobody marked.", "derived",
    subject="guest", value=lambda rank: collector_seconds(rank.role, rank.totals),
)  # fmt: skip
