"""Weight sync taken apart: what each part takes, for the sender and for each receiver."""

from dfx_agent.catalogue.spec import PER_RANK, Metric, native
from dfx_agent.snapshot import RankRow, TimeSplit

# of stages: weight_sync_pause, _gather, _transfer, _load, _resume and what else a job marks so
STAGE_PREFIX = "weight_sync_"


def part_seconds(split: TimeSplit) -> dict[str, float]:
    """Part -> seconds in the stages that are named after it, waits in them included."""
    found: dict[str, float] = {}
    stages = [split.stage_seconds, *split.wait_seconds.values()]
    for stage, seconds in (item for of_stage in stages for item in of_stage.items()):
        if stage.startswith(STAGE_PREFIX):
            part = stage.removeprefix(STAGE_PREFIX)
            found[part] = found.get(part, 0.0) + seconds
    return found


def _of_sender(rank: RankRow) -> dict[tuple[str, ...], float] | None:
    if rank.last is None:
        return None
    return {(part, ""): seconds for part, seconds in part_seconds(rank.last).items()}


UPDATE_SECONDS = Metric(
    "dfx_weight_update_seconds", "gauge", "seconds", (*PER_RANK, "part", "receiver"),
    "Time of the last weight sync by part (pause, gather, transfer, load, resume), waits included: "
    "from the sender's stages weight_sync_PART, and from values that frameworks report. receiver: "
    "time of this receiver only; empty: of the sender, or of all.", "derived",
    subject="guest", value=_of_sender,
)  # fmt: skip
BYTES = native(
    "dfx_weight_sync_bytes", "bytes", ("receiver",),
    "Bytes of one weight sync; receiver: those sent to that one, empty: one copy of the weights.",
)  # fmt: skip
LOST_RECEIVERS = native(
    "dfx_weight_sync_lost_receivers",
    "",
    (),
    "Receivers that get no weights any more, since they did not answer.",
)

# fmt: off
_NATIVE = (
    native(
        "dfx_weight_sync_changed_ratio", "ratio", (),
        "Share of the weights that a delta synchronisation sends.",
    ),
    native(
        "dfx_weight_sync_changed_elements", "", (),
        "Weights that a delta synchronisation sends.",
    ),
    native(
        "dfx_weight_sync_flushes", "", (),
        "Flushes of one weight synchronisation.",
    ),
)
# fmt: on
