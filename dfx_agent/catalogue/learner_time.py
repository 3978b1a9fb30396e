"""Where one iteration of an off-policy learner went, per rank, and where its collector's time."""

from dfx_agent.catalogue.spec import PER_RANK, Metric, Values
from dfx_agent.snapshot import RankRow
from dfx_agent.snapshot.learner_time import collector_seconds, learner_seconds, pipeline_seconds


def _learner(rank: RankRow) -> dict[str, float] | None:
    return None if rank.last is None else learner_seconds(rank.role, rank.last, rank.totals)


def _by_part(parts: dict[str, float] | None) -> Values:
    return None if parts is None else {(part,): seconds for part, seconds in parts.items()}


LEARNER_SECONDS = Metric(
    "dfx_rank_learner_seconds", "gauge", "seconds", (*PER_RANK, "part"),
    "Where the learner's last iteration went; each instant is in one part, together "
    "they are dfx_rank_step_seconds. collector_wait: blocked for data, without logging, handshake "
    "and barriers. replay_batch_wait: for the batch to be packed and on the device, 0 on a "
    "prefetch hit. rank_barrier: for other ranks, before and after training. sync_coordination: "
    "handshake with the collector. h2d: copy to the device by the learner's own thread. train: "
    "pure compute. param_sync: gradients or parameters brought together, with the wait in it. "
    "weight_sync: publishing weights. other: inference, logging, checkpoints, what nobody marked.",
    "derived", of="guest", value=lambda rank: _by_part(_learner(rank)),
)  # fmt: skip
LEARNER_PIPELINE_SECONDS = Metric(
    "dfx_rank_learner_pipeline_seconds", "gauge", "seconds", PER_RANK,
    "The learner's own work in its last iteration: h2d + train + param_sync + weight_sync of "
    "dfx_rank_learner_seconds.", "derived",
    of="guest", value=lambda rank: pipeline_seconds(_learner(rank)),
)  # fmt: skip
COLLECTOR_SECONDS = Metric(
    "dfx_rank_collector_seconds", "counter", "seconds", (*PER_RANK, "part"),
    "Where the collector's time went. weight_sync: reading new weights. action_select: until the "
    "learner's actions are there. env_step: in the environment. replay: writing transitions. "
    "sync_coordination: asking the learner. other: what nobody marked.", "derived",
    of="guest", value=lambda rank: _by_part(collector_seconds(rank.role, rank.totals)),
)  # fmt: skip

METRICS = (LEARNER_SECONDS, LEARNER_PIPELINE_SECONDS, COLLECTOR_SECONDS)
