"""What the steps of the role that trains go to, by what would have to be faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dfx_agent.facts.wait_kinds import SAMPLE_WAITS, SYNC_COORDINATION
from dfx_agent.snapshot import BoundBy, StepCell, StepRow, TimeSplit

# stage -> what a step is bound by while it is in it; all others are "train"
_STAGES: Mapping[str, BoundBy] = {
    "rollout": "rollout",
    "generate": "rollout",
    "tool": "tool",
    "environment": "tool",
    "reward": "reward",
    "h2d": "data",
    "pack": "data",
    "data": "data",
}
_TRAINS = ("actor_update", "critic_update", "backward", "optimizer", "forward", "train")
# not part of what a step is for
ASIDE = ("checkpoint", "validation", "eval")
_WAITS: Mapping[str, BoundBy] = {
    "collector": "rollout",
    "queue": "rollout",
    "replay_batch": "data",
    "policy": "policy gate",
    "barrier": "peers",
    SYNC_COORDINATION: "weight sync",
}
WEIGHT_SYNC = "weight_sync"
_LEAST_ROWS = 5


@dataclass(frozen=True)
class StepShares:
    """Seconds of the mean step of a mean rank; ``waited`` is kind of wait -> seconds.

    "peers" is of the rank that waits longest in each step: who is late does not wait at all.
    """

    num_steps: int
    step_seconds: float
    by_bound: Mapping[BoundBy, float]
    waited: Mapping[str, float]

    @property
    def known_ratio(self) -> float:
        """Share of a step that is inside a stage or a wait; overlapping stages may make it more."""
        return sum(self.by_bound.values()) / self.step_seconds if self.step_seconds else 0.0

    def ratio(self, bound: BoundBy) -> float:
        return self.by_bound.get(bound, 0.0) / self.step_seconds if self.step_seconds else 0.0


def training_role(steps: Iterable[StepRow]) -> str | None:
    """The role whose newest step trains; else the one whose says most of where its time went."""
    trained: defaultdict[str, float] = defaultdict(float)
    told: defaultdict[str, float] = defaultdict(float)
    for row in {row.role: row for row in steps}.values():
        for cell in row.cells:
            seconds = cell.split.stage_seconds
            trained[row.role] += sum(seconds.get(name, 0.0) for name in _TRAINS)
            told[row.role] += sum(seconds.values())
    seconds_of = trained if any(trained.values()) else told
    return max(seconds_of, key=lambda role: seconds_of[role], default=None)


def step_shares(rows: Sequence[StepRow]) -> StepShares:
    """Of closed steps of one role, at least one."""
    cells = [cell for row in rows for cell in row.cells]
    by_bound: defaultdict[BoundBy, float] = defaultdict(float)
    waited: defaultdict[str, float] = defaultdict(float)
    for cell in cells:
        for bound, seconds in _of_stages(cell.split):
            by_bound[bound] += seconds
        for kind, places in cell.split.wait_seconds.items():
            waited[kind] += sum(places.values())
            for stage, seconds in places.items():
                by_bound[_bound_of_wait(kind, stage)] += seconds
    num = len(cells) or 1
    mean = {bound: seconds / num for bound, seconds in by_bound.items()}
    if "peers" in mean:
        mean["peers"] = _longest_for_peers(rows)
    return StepShares(
        len(rows),
        sum(cell.split.wall_seconds for cell in cells) / num,
        mean,
        {kind: seconds / num for kind, seconds in waited.items()},
    )


class LateRank(NamedTuple):
    """The rank for which the others waited in every step, for so long in the mean."""

    rank: str
    seconds: float
    stage: str  # in which it is longer than the others


def late_rank(rows: Sequence[StepRow], least_seconds: float) -> LateRank | None:
    """None where it is now one, now another, or not for ``least_seconds`` of each step."""
    waits = [_waits_for_peers(row) for row in rows]
    last = {min(waited, key=lambda rank: waited[rank]) for waited in waits if len(waited) > 1}
    if len(last) != 1 or len(rows) < _LEAST_ROWS:
        return None
    (rank,) = last
    lost = [max(waited.values()) - waited.get(rank, 0.0) for waited in waits]
    if min(lost) < least_seconds:
        return None
    return LateRank(rank, sum(lost) / len(lost), _longer_stage(rows, rank))


def _longer_stage(rows: Sequence[StepRow], rank: str) -> str:
    more: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        others = len(row.cells) - 1
        for cell in row.cells:
            for stage, seconds in cell.split.stage_seconds.items():
                more[stage] += seconds if cell.rank == rank else -seconds / others
    return max(more, key=lambda stage: more[stage], default="")


def _waits_for_peers(row: StepRow) -> dict[str, float]:
    """Rank -> seconds outside all stages."""
    return {
        cell.rank: sum(
            seconds
            for kind, places in cell.split.wait_seconds.items()
            for stage, seconds in places.items()
            if _bound_of_wait(kind, stage) == "peers"
        )
        for cell in row.cells
    }


def _longest_for_peers(rows: Sequence[StepRow]) -> float:
    """Of a step, whoever it is in each."""
    return sum(max(_waits_for_peers(row).values(), default=0.0) for row in rows) / len(rows)


def _of_stages(split: TimeSplit) -> Iterator[tuple[BoundBy, float]]:
    for stage, seconds in split.stage_seconds.items():
        if not stage.startswith(ASIDE):
            yield bound_of_stage(stage), seconds


def bound_of_stage(stage: str) -> BoundBy:
    """``weight_sync_load`` is weight sync too, ``rollout_turn`` rollout."""
    if stage.startswith(WEIGHT_SYNC):
        return "weight sync"
    return next((bound for name, bound in _STAGES.items() if stage.startswith(name)), "train")


def _bound_of_wait(kind: str, stage: str) -> BoundBy:
    """Waiting for a peer or a server within a stage is part of that stage."""
    if kind in _WAITS:
        return _WAITS[kind]
    if stage:
        return bound_of_stage(stage)
    return "peers" if kind == "collective" else "rollout"


def aside_seconds(row: StepRow) -> float:
    """Of the rank that was longest in a checkpoint or a validation: the others wait for it."""
    return max(
        (
            sum(s for name, s in cell.split.stage_seconds.items() if name.startswith(ASIDE))
            for cell in row.cells
        ),
        default=0.0,
    )


def waited_for_samples(cell: StepCell) -> float:
    """Seconds in which this rank had nothing to train on."""
    waits = cell.split.wait_seconds
    return sum(sum(waits.get(kind, {}).values()) for kind in SAMPLE_WAITS)


def weight_sync_parts(row: StepRow) -> dict[str, float]:
    """Part -> seconds, of the rank that spends most on bringing weights on."""
    parts = [
        {name: s for name, s in cell.split.stage_seconds.items() if name.startswith(WEIGHT_SYNC)}
        for cell in row.cells
    ]
    return max(parts, key=lambda found: sum(found.values()), default={})
