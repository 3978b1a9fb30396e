"""Splits the wall time of steps into named parts that add up to the step.

Every part is exclusive time: a wait inside a stage is a wait, and time outside all stages and waits
is unmarked code. The parts add up to the wall time of the mean step of a mean rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from dfx_agent.facts.steps import PEER_WAITS, SAMPLE_WAITS
from dfx_agent.snapshot import PartKind, StepPart, TimeSplit

UNMARKED = "unmarked code"
OTHER = "other"
PEERS = "waiting for other ranks"
UPDATE = "update"
# first words of a stage -> the part it belongs to; a stage that is not listed is its own part
_STAGES: Mapping[str, str] = {
    "rollout": "rollout",
    "generate": "rollout",
    "tool": "tools",
    "environment": "tools",
    "reward": "reward",
    "old_logprob": "log-probs",
    "ref_logprob": "log-probs",
    "values": "values",
    "advantage": "advantage",
    "actor_update": UPDATE,
    "critic_update": UPDATE,
    "forward": UPDATE,
    "backward": UPDATE,
    "optimizer": UPDATE,
    "train": UPDATE,
    "weight_sync": "weight sync",
    "h2d": "data",
    "pack": "data",
    "data": "data",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "eval": "validation",
    "offload": "offload",
    "onload": "offload",
    "step": UNMARKED,  # the whole step: its exclusive time is in no stage
}
_WAITS: Mapping[str, str] = {
    "replay_batch": "waiting for data",
    "data_loader": "waiting for the data loader",
    "policy": "waiting for new weights",
    "logger": "waiting for the logger",
}
MAX_PARTS = 12


class StepPartKey(NamedTuple):
    """Name and kind of a part."""

    name: str
    kind: PartKind


class StepTime(NamedTuple):
    """The mean step, divided into parts."""

    step_seconds: float
    seconds: Mapping[StepPartKey, float]
    """Mean seconds of each part."""
    largest_stage: Mapping[str, str]
    """Stage with more than half of the time of a part, by name of the part."""

    def parts(self) -> tuple[StepPart, ...]:
        """Largest first, at most twelve; the rest is "other". Their ratios sum to 1."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        shown, rest = ordered[: MAX_PARTS - 1], ordered[MAX_PARTS - 1 :]
        if rest:
            shown = [*shown, (StepPartKey(OTHER, "other"), sum(seconds for _, seconds in rest))]
        wall = self.step_seconds
        return tuple(
            StepPart(key.name, key.kind, seconds, seconds / wall)
            for key, seconds in shown
            if seconds > 0 and wall > 0
        )

    def ratio(self, kind: PartKind) -> float:
        """Share of the step that parts of this kind take."""
        seconds = sum(
            part_seconds for key, part_seconds in self.seconds.items() if key.kind == kind
        )
        return seconds / self.step_seconds if self.step_seconds else 0.0


def step_time(splits: Iterable[TimeSplit], num_steps: float | None = None) -> StepTime:
    """Mean over ``splits``, one per rank and step.

    ``num_steps``: rank-steps, if they cover more.
    """
    seconds: defaultdict[StepPartKey, float] = defaultdict(float)
    stages: defaultdict[str, float] = defaultdict(float)
    wall, num_splits = 0.0, 0
    for split in splits:
        num_splits += 1
        wall += split.wall_seconds
        _add_split(split, seconds, stages)
    divisor = num_splits if num_steps is None else num_steps
    if not divisor:
        return StepTime(0.0, {}, {})
    means = {key: total / divisor for key, total in seconds.items()}
    return StepTime(wall / divisor, means, _largest_stages(stages))


def _largest_stages(stages: Mapping[str, float]) -> dict[str, str]:
    total: defaultdict[str, float] = defaultdict(float)
    for stage, seconds in stages.items():
        total[part_of_stage(stage)] += seconds
    return {
        part_of_stage(stage): stage
        for stage, seconds in stages.items()
        if seconds > total[part_of_stage(stage)] / 2
    }


def _add_split(
    split: TimeSplit, seconds: defaultdict[StepPartKey, float], stages: defaultdict[str, float]
) -> None:
    total = sum(split.stage_seconds.values())
    # stages that overlap sum to more than the active time
    scale = split.active_seconds / total if total else 0.0
    for stage, amount in split.stage_seconds.items():
        part = part_of_stage(stage)
        kind: PartKind = "unmarked" if part == UNMARKED else "work"
        seconds[StepPartKey(part, kind)] += amount * scale
        stages[stage] += amount * scale
    for wait, by_stage in split.wait_seconds.items():
        for stage, amount in by_stage.items():
            seconds[StepPartKey(part_of_wait(wait, stage), "wait")] += amount
    marked = split.active_seconds if total else 0.0
    waited = sum(sum(by_stage.values()) for by_stage in split.wait_seconds.values())
    seconds[StepPartKey(UNMARKED, "unmarked")] += max(0.0, split.wall_seconds - marked - waited)


@lru_cache(maxsize=1024)
def part_of_stage(stage: str) -> str:
    """The part of a stage: "rollout" for ``rollout_turn``; an unknown stage is its own part."""
    words = stage
    while words:
        if words in _STAGES:
            return _STAGES[words]
        words = words.rpartition("_")[0]
    return stage


@lru_cache(maxsize=1024)
def part_of_wait(kind: str, stage: str) -> str:
    """A wait in words, as in "waiting for other ranks" or "waiting for remote rollout"."""
    if kind in PEER_WAITS:
        return PEERS
    if kind in SAMPLE_WAITS:
        return "waiting for rollout"
    if kind == "remote":
        part = part_of_stage(stage) if stage else ""
        return f"waiting for remote {part or 'calls'}" if part != UNMARKED else _REMOTE
    return _WAITS.get(kind, f"waiting for {kind}")


_REMOTE = "waiting for remote calls"
