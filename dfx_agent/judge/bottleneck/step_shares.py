"""Divides the steps of the training role by what limits them ("bounds")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dfx_agent.facts.steps import PEER_WAITS, SAMPLE_WAITS, SYNC_COORDINATION
from dfx_agent.judge.bottleneck.step_parts import part_of_stage
from dfx_agent.snapshot import BoundBy, StepCell, StepRow, TimeSplit

# stage -> bound; stages that only this job has are no bound
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
# parts of a step that training computes
_TRAINED_PARTS = frozenset({"update", "log-probs", "values", "advantage"})
_TRAINS = ("actor_update", "critic_update", "backward", "optimizer", "forward", "train")
# stages that are not part of a usual step
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
# bounds that make a rank late, so that its peers wait for it
_FOR_OTHERS: tuple[BoundBy, ...] = ("rollout", "policy gate", "data", "reward", "tool")
WEIGHT_SYNC = "weight_sync"


@dataclass(frozen=True)
class StepShares:
    """The cost of each bound in the mean step. Costs do not add up.

    The cost of a stage is its time in a mean rank. The cost of a wait is that of the rank that
    waits longest, because the other ranks wait for this rank.
    """

    num_steps: int
    step_seconds: float
    by_bound: Mapping[BoundBy, float]
    """Seconds per step by bound."""
    waited: Mapping[str, float]
    """Seconds per step of a mean rank by kind of wait."""
    known_ratio: float
    """Share of the step of a mean rank that is inside a stage or a wait."""

    def ratio(self, bound: BoundBy) -> float:
        return self.by_bound.get(bound, 0.0) / self.step_seconds if self.step_seconds else 0.0


def training_role(steps: Iterable[StepRow]) -> str | None:
    """The role whose latest step trains; otherwise the role with most time in stages."""
    trained: defaultdict[str, float] = defaultdict(float)
    marked: defaultdict[str, float] = defaultdict(float)
    for row in {row.role: row for row in steps}.values():
        for cell in row.cells:
            seconds = cell.split.stage_seconds
            trained[row.role] += sum(seconds.get(name, 0.0) for name in _TRAINS)
            marked[row.role] += sum(seconds.values())
    seconds_of = trained if any(trained.values()) else marked
    return max(seconds_of, key=lambda role: seconds_of[role], default=None)


def step_shares(rows: Sequence[StepRow]) -> StepShares:
    """Shares of the closed steps of one role; at least one step."""
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
    known_ratio = 1.0 - idle / wall if wall else 0.0
    # overlapping stages, or the longest wait of one rank, can exceed the mean step
    at_most = {bound: min(seconds, wall) for bound, seconds in by_bound.items()}
    return StepShares(len(rows), wall, at_most, waited, known_ratio)


def _waits_of_step(row: StepRow) -> dict[BoundBy, float]:
    """The longest wait of any rank by bound, because other ranks wait for this rank.

    Waits for peers count only as far as other waits of the last rank do not explain them.
    """
    longest: dict[BoundBy, float] = {}
    for cell in row.cells:
        for bound, seconds in _waits_of(cell).items():
            longest[bound] = max(longest.get(bound, 0.0), seconds)
    if "peers" in longest:
        longest["peers"] = _lost_to_peers(row)
    return longest


def _lost_to_peers(row: StepRow) -> float:
    """How long the first rank waits because of the last one, without the last one's own waits."""
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


@lru_cache(maxsize=1024)  # the largest number of names in a job
def bound_of_stage(stage: str) -> BoundBy | None:
    """The bound of a stage by its prefix, as "rollout" for ``rollout_turn``; None for no bound."""
    if stage.startswith(WEIGHT_SYNC):
        return "weight sync"
    bound = next((bound for name, bound in _STAGES.items() if stage.startswith(name)), None)
    return "train" if bound is None and part_of_stage(stage) in _TRAINED_PARTS else bound


@lru_cache(maxsize=1024)  # the largest number of names in a job
def _bound_of_wait(kind: str, stage: str) -> BoundBy | None:
    """The bound of a wait. A request to a server inside a stage has the bound of the stage."""
    if kind in _WAITS:
        return _WAITS[kind]
    if kind in PEER_WAITS:
        return "weight sync" if stage.startswith(WEIGHT_SYNC) else "peers"
    if kind != "remote":
        return None
    return bound_of_stage(stage) if stage else "rollout"


def aside_seconds(row: StepRow) -> float:
    """Longest time of any rank in a checkpoint or a validation."""
    return max(
        (
            sum(
                seconds
                for name, seconds in cell.split.stage_seconds.items()
                if name.startswith(ASIDE)
            )
            for cell in row.cells
        ),
        default=0.0,
    )


def waited_for_samples(cell: StepCell) -> float:
    """Seconds in which this rank had nothing to train on."""
    waits = cell.split.wait_seconds
    return sum(sum(waits.get(kind, {}).values()) for kind in SAMPLE_WAITS)


def weight_sync_parts(row: StepRow) -> dict[str, float]:
    """Seconds by part of the weight sync, of the rank that spends most on it."""
    parts = [
        {
            name: seconds
            for name, seconds in cell.split.stage_seconds.items()
            if name.startswith(WEIGHT_SYNC)
        }
        for cell in row.cells
    ]
    return max(parts, key=lambda found: sum(found.values()), default={})
