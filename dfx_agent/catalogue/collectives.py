"""Collectives of torch.distributed: waits between ranks, and how many of them were observed."""

from dfx_agent.catalogue.spec import PER_RANK, Metric
from dfx_agent.snapshot import CollectiveTime, GroupRow, RankRow

# A job may make thousands of groups; beyond these a rank's groups share the label.
_MAX_GROUPS = 32
_OTHER_GROUPS = "other"


def _shown_groups(rank: RankRow) -> set[str]:
    """The first process groups that this rank reported, in the order of the rows."""
    names = dict.fromkeys(row.group for row in rank.groups)
    names.update(dict.fromkeys(row.group for row in rank.collectives))
    return set(list(names)[:_MAX_GROUPS])


def _groups(rank: RankRow) -> list[GroupRow]:
    shown = _shown_groups(rank) if rank.groups else ()
    return [row for row in rank.groups if row.group in shown]


def _rows(rank: RankRow) -> dict[tuple[str, ...], list[CollectiveTime]]:
    """Rows by (group, stage, method)."""
    shown = _shown_groups(rank) if rank.collectives else ()
    found: dict[tuple[str, ...], list[CollectiveTime]] = {}
    for row in rank.collectives:
        group = row.group if row.group in shown else _OTHER_GROUPS
        found.setdefault((group, row.stage, row.method), []).append(row)
    return found


def _num_bytes(rank: RankRow) -> dict[tuple[str, ...], float]:
    found = {
        key: [row.num_bytes for row in rows if row.num_bytes is not None]
        for key, rows in _rows(rank).items()
    }
    return {key: sum(sizes) for key, sizes in found.items() if sizes}


def _seconds(rank: RankRow) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for (group, stage, method), rows in _rows(rank).items():
        found[group, stage, "peers", method] = sum(row.peers_seconds for row in rows)
        found[group, stage, "transfer", method] = sum(row.transfer_seconds for row in rows)
        found[group, stage, "unmatched", method] = sum(row.unmatched_seconds for row in rows)
    return found


def _inflight_seconds(rank: RankRow) -> dict[tuple[str, ...], float]:
    """The oldest open one of each name."""
    longest: dict[tuple[str, ...], float] = {}
    for span in rank.inflight:
        if span.kind == "collective":
            operation, _, group = span.name.rpartition("@")
            before = longest.get((operation, group), 0.0)
            longest[operation, group] = max(before, span.elapsed_seconds)
    return longest


COLLECTIVE_SECONDS = Metric(
    "dfx_rank_collective_seconds", "counter", "seconds",
    (*PER_RANK, "group", "stage", "part", "method"),
    "Host time blocked in collectives: part=peers until the last rank had arrived, part=transfer "
    "after that, part=unmatched where the other arrivals are unknown; method (arrival, duration) "
    "says how the parts were separated. method=device is time of the device, not of the host: "
    "seconds that a device's stream was blocked, in every 16th step only and with "
    "DFX_DEVICE_TIME=1 in the job. Compare its shares; never add it to the others.", "derived",
    subject="guest", value=_seconds,
)  # fmt: skip
COLLECTIVES = Metric(
    "dfx_rank_collectives", "counter", "", (*PER_RANK, "group", "stage", "method"),
    "Collectives this rank took part in, by process group and stage; beyond 32 groups of a rank "
    "the others are summed as group=other. method=device counts again those that were timed on a "
    "device.", "shim",
    subject="guest", value=lambda rank: {
        key: sum(row.num_collectives for row in rows) for key, rows in _rows(rank).items()
    },
)  # fmt: skip
COLLECTIVE_BYTES = Metric(
    "dfx_rank_collective_bytes", "counter", "bytes", (*PER_RANK, "group", "stage", "method"),
    "Bytes this rank gave to collectives, before any algorithm multiplies them.", "shim",
    subject="guest", value=_num_bytes,
)  # fmt: skip
COVERAGE_RATIO = Metric(
    "dfx_collective_coverage_ratio", "gauge", "ratio", (*PER_RANK, "group"),
    "Collectives recorded / collectives the group itself counted; below 1 some are issued where "
    "the guest cannot see them (compiled graphs, functional collectives).", "derived",
    subject="guest", value=lambda rank: {
        (row.group,): row.coverage_ratio
        for row in _groups(rank)
        if row.coverage_ratio is not None
    },
)  # fmt: skip
RANK_GROUPS = Metric(
    "dfx_rank_groups", "gauge", "", PER_RANK,
    "Process groups this rank has reported; the first 32 have series of their own.", "shim",
    subject="guest", value=lambda rank: len(rank.groups) or None,
)  # fmt: skip
GROUP_ENQUEUED = Metric(
    "dfx_group_enqueued", "gauge", "", (*PER_RANK, "group"),
    "Sequence number of the latest collective that this rank has enqueued in the group. The other "
    "ranks wait for the rank with the lowest number.", "shim",
    subject="guest", value=lambda rank: {(row.group,): row.num_enqueued for row in _groups(rank)},
)  # fmt: skip
GROUP_COMPLETED = Metric(
    "dfx_group_completed", "gauge", "", (*PER_RANK, "group"),
    "Sequence number of the latest completed collective of the group; absent if the backend does "
    "not report it.", "shim",
    subject="guest", value=lambda rank: {
        (row.group,): row.num_completed for row in _groups(rank) if row.num_completed is not None
    },
)  # fmt: skip
INFLIGHT_COLLECTIVE_SECONDS = Metric(
    "dfx_rank_inflight_collective_seconds", "gauge", "seconds", (*PER_RANK, "operation", "group"),
    "How long this rank has been in a collective, or waiting for one; no series when it is in "
    "none.", "shim",
    subject="guest", value=_inflight_seconds,
)  # fmt: skip
