"""What the steps of the role that trains go to, by what would have to be faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
# what a rank waits for whom its peers then wait for
_FOR_OTHERS: tuple[BoundBy, ...] = ("rollout", "policy gate", "data", "reward", "tool")
WEIGHT_SYNC = "weight_sync"
_LEAST_ROWS = 5


@dataclass(frozen=True)
class StepShares:
    """Seconds of the mean step: of stages of a mean rank, of waits of the one that waits longest.

    ``waited`` is kind of wait -> seconds of a mean rank.
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
    for row in rows:
        for bound, seconds in _waits_of_step(row).items():
            by_bound[bound] += seconds / len(rows)
    for cell in cells:
        for bound, seconds in _of_stages(cell.split):
            by_bound[bound] += seconds / len(cells)
        for kind, places in cell.split.wait_seconds.items():
            waited[kind] += sum(places.values()) / len(cells)
    wall = sum(cell.split.wall_seconds for cell in cells) / (len(cells) or 1)
    return StepShares(len(rows), wall, by_bound, waited)


def _waits_of_step(row: StepRow) -> dict[BoundBy, float]:
    """Of the rank that waits longest for each, since the others wait for that one.

    For peers it is what that does not explain: who comes last may have waited for somebody else.
    """
    longest: dict[BoundBy, float] = {}
    for cell in row.cells:
        for bound, seconds in _waits_of(cell).items():
            longest[bound] = max(longest.get(bound, 0.0), seconds)
    if "peers" in longest:
        longest["peers"] = _last(row)[1]
    return longest


def _last(row: StepRow) -> tuple[str, float]:
    """Who comes last, and for how long the first waits because of that rank itself."""
    waits = {cell.rank: _waits_of(cell) for cell in row.cells}
    first, last = (pick(waits, key=lambda rank: _for_peers(waits[rank])) for pick in (max, min))
    elsewhere = _elsewhere(waits[last]) - _elsewhere(waits[first])
    waited = _for_peers(waits[first]) - _for_peers(waits[last])
    return last, max(0.0, waited - max(0.0, elsewhere))


def _for_peers(waits: Mapping[BoundBy, float]) -> float:
    return waits.get("peers", 0.0)


def _elsewhere(waits: Mapping[BoundBy, float]) -> float:
    return sum(waits.get(bound, 0.0) for bound in _FOR_OTHERS)


def _waits_of(cell: StepCell) -> dict[BoundBy, float]:
    found: defaultdict[BoundBy, float] = defaultdict(float)
    for kind, places in cell.split.wait_seconds.items():
        for stage, seconds in places.items():
            found[_bound_of_wait(kind, stage)] += seconds
    return found


class LateRank(NamedTuple):
    """The rank for which the others waited in every step, for so long in the mean."""

    rank: str
    seconds: float
    stage: str  # in which it is longer than the others


def late_rank(rows: Sequence[StepRow], least_seconds: float) -> LateRank | None:
    """None where it is now one, now another, or not for ``least_seconds`` of each step."""
    told = [_last(row) for row in rows if len(row.cells) > 1]
    if len({rank for rank, _ in told}) != 1 or len(told) < _LEAST_ROWS:
        return None
    rank, lost = told[0][0], [seconds for _, seconds in told]
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


def _of_stages(split: TimeSplit) -> Iterator[tuple[BoundBy, float]]:
    for stage, seconds in split.stage_seconds.items():
        if not stage.startswith(ASIDE):
            yield bound_of_stage(stage), seconds


@lru_cache(maxsize=1024)  # as many names as a job may have
def bound_of_stage(stage: str) -> BoundBy:
    """``weight_sync_load`` is weight sync too, ``rollout_turn`` rollout."""
    if stage.startswith(WEIGHT_SYNC):
        return "weight sync"
    return next((bound for name, bound in _STAGES.items() if stage.startswith(name)), "train")


@lru_cache(maxsize=1024)  # as many names as a job may have
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
