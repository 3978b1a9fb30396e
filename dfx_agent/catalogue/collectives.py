"""Collectives of torch.distributed: who waits for whom, and how much of it was seen."""

from dfx_agent.catalogue.spec import PER_RANK, Metric

COLLECTIVE_SECONDS = Metric(
    "dfx_rank_collective_seconds", "counter", "seconds",
    (*PER_RANK, "group", "stage", "part", "method"),
    "Host time blocked in collectives: part=peers until the last rank had arrived, part=transfer "
    "after that, part=unmatched where the other arrivals are not known; method says how they were "
    "told apart (arrival, duration). method=device is not the host's: seconds that a device's "
    "stream stood, in every 16th step alone and with DFX_DEVICE_TIME=1 in the job; compare shares, "
    "never add it to the others.", "derived",
)  # fmt: skip
COLLECTIVES = Metric(
    "dfx_rank_collectives", "counter", "", (*PER_RANK, "group", "stage", "method"),
    "Collectives this rank took part in, by process group and stage; beyond 32 groups of a rank "
    "the others are summed as group=other. method=device counts again those that were timed on a "
    "device.", "shim",
)  # fmt: skip
COLLECTIVE_BYTES = Metric(
    "dfx_rank_collective_bytes", "counter", "bytes", (*PER_RANK, "group", "stage", "method"),
    "Bytes this rank gave to collectives, before any algorithm multiplies them.", "shim",
)  # fmt: skip
COVERAGE_RATIO = Metric(
    "dfx_collective_coverage_ratio", "gauge", "ratio", (*PER_RANK, "group"),
    "Collectives recorded / collectives the group itself counted; below 1 some are issued where "
    "the guest cannot see them (compiled graphs, functional collectives).", "derived",
)  # fmt: skip
RANK_GROUPS = Metric(
    "dfx_rank_groups", "gauge", "", PER_RANK,
    "Process groups this rank has told of; the first 32 have series of their own.", "shim",
)  # fmt: skip
GROUP_ENQUEUED = Metric(
    "dfx_group_enqueued", "gauge", "", (*PER_RANK, "group"),
    "Sequence number of the newest collective this rank has put into the group: a rank that is "
    "behind the others is the one they wait for.", "shim",
)  # fmt: skip
GROUP_COMPLETED = Metric(
    "dfx_group_completed", "gauge", "", (*PER_RANK, "group"),
    "Sequence number of the newest collective of the group that is over; absent where the backend "
    "does not tell.", "shim",
)  # fmt: skip
INFLIGHT_COLLECTIVE_SECONDS = Metric(
    "dfx_rank_inflight_collective_seconds", "gauge", "seconds", (*PER_RANK, "operation", "group"),
    "How long this rank has been in a collective, or waiting for one; no series when it is in "
    "none.", "shim",
)  # fmt: skip

METRICS = (
    COLLECTIVE_SECONDS,
    COLLECTIVES,
    COLLECTIVE_BYTES,
    COVERAGE_RATIO,
    RANK_GROUPS,
    GROUP_ENQUEUED,
    GROUP_COMPLETED,
    INFLIGHT_COLLECTIVE_SECONDS,
)
