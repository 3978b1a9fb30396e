"""What the steps of the role that trains go to, by what would have to be faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dfx_agent.facts.wait_kinds import PEER_WAITS, SAMPLE_WAITS, SYNC_COORDINATION
from dfx_agent.judge.bottleneck.step_parts import part_of_stage
from dfx_agent.snapshot import BoundBy, StepCell, StepRow, TimeSplit

# stage -> what a step is bound by while it is in it; a stage of the job's own bounds nothing
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
# what the training side computes, by part of the step
_TRAINED_PARTS = frozenset({"update", "log-probs", "values", "advantage"})
_TRAINS = ("actor_update", "critic_update", "backward", "optimizer", "forward", "train")
# not part of what a step is for
ASIDE = ("checkpoint", "validation", "eval")
_WAITS: Mapping[str, BoundBy] = {
    "collector": "rollout",
    "queue": "rollout",
    "replay_batch": "data",
    "data_loader": "data",
    "policy": "policy gate",
    "barrier": "peers",
    SYNC_COORDINATION: "weight sync",
}
# what a rank waits for whom its peers then wait for
_FOR_OTHERS: tuple[BoundBy, ...] = ("rollout", "policy gate", "data", "reward", "tool")
WEIGHT_SYNC = "weight_sync"


@dataclass(frozen=True)
class StepShares:
    """What each bound costs in the mean step: each by itself, they do not add up.

    A stage costs what a mean rank is in it; a wait costs what the rank waits that waits longest,
    because the other ranks wait for that rank. ``waited``: kind of wait -> seconds of a mean rank.
    """

    num_steps: int
    step_seconds: float
    by_bound: Mapping[BoundBy, float]
    waited: Mapping[str, float]
    known_ratio: float
    """Share of the step of a mean rank that is inside a stage or a wait."""

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
    idle = sum(cell.split.idle_seconds for cell in cells) / (len(cells) or 1)
    known = 1.0 - idle / wall if wall else 0.0
    # stages that overlap, and the one rank that waits longest, may take more than the mean step
    at_most = {bound: min(seconds, wall) for bound, seconds in by_bound.items()}
    return StepShares(len(rows), wall, at_most, waited, known)


def _waits_of_step(row: StepRow) -> dict[BoundBy, float]:
    """Of the rank that waits longest for each, since the others wait for that one.

    For peers it is what that does not explain: who comes last may have waited for somebody else.
    """
    longest: dict[BoundBy, float] = {}
    for cell in row.cells:
        for bound, seconds in _waits_of(cell).items():
            longest[bound] = max(longest.get(bound, 0.0), seconds)
    if "peers" in longest:
        longest["peers"] = _lost_to_peers(row)
    return longest


def _lost_to_peers(row: StepRow) -> float:
    """For how long the first rank to arrive waits because of the last one itself."""
    waits = {cell.rank: _waits_of(cell) for cell in row.cells}
    first, last = (pick(waits, key=lambda rank: _for_peers(waits[rank])) for pick in (max, min))
    elsewhere = _elsewhere(waits[last]) - _elsewhere(waits[first])
    waited = _for_peers(waits[first]) - _for_peers(waits[last])
    return max(0.0, waited - max(0.0, elsewhere))


def _for_peers(waits: Mapping[BoundBy, float]) -> float:
    return waits.get("peers", 0.0)


def _elsewhere(waits: Mapping[BoundBy, float]) -> float:
    return sum(waits.get(bound, 0.0) for bound in _FOR_OTHERS)


def _waits_of(cell: StepCell) -> dict[BoundBy, float]:
    found: defaultdict[BoundBy, float] = defaultdict(float)
    for kind, places in cell.split.wait_seconds.items():
        for stage, seconds in places.items():
            bound = _bound_of_wait(kind, stage)
            if bound is not None:
                found[bound] += seconds
    return found


def _of_stages(split: TimeSplit) -> Iterator[tuple[BoundBy, float]]:
    for stage, seconds in split.stage_seconds.items():
        bound = bound_of_stage(stage)
        if bound is not None:
            yield bound, seconds


@lru_cache(maxsize=1024)  # as many names as a job may have
def bound_of_stage(stage: str) -> BoundBy | None:
    """``weight_sync_load`` is weight sync too, ``rollout_turn`` rollout; None bounds nothing."""
    if stage.startswith(WEIGHT_SYNC):
        return "weight sync"
    bound = next((bound for name, bound in _STAGES.items() if stage.startswith(name)), None)
    return "train" if bound is None and part_of_stage(stage) in _TRAINED_PARTS else bound


@lru_cache(maxsize=1024)  # as many names as a job may have
def _bound_of_wait(kind: str, stage: str) -> BoundBy | None:
    """Who makes the rank wait; a server that is asked inside a stage does the work of the stage."""
    if kind in _WAITS:
        return _WAITS[kind]
    if kind in PEER_WAITS:
        return "weight sync" if stage.startswith(WEIGHT_SYNC) else "peers"
    if kind != "remote":
        return None
    return bound_of_stage(stage) if stage else "rollout"


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
