"""Closed steps of a scene: what each rank computes and waits for, second by second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scene_file import Scene, clause_values

from dfx_agent.facts.steps import IDLE, TRANSFER, RankStep, SchedTimes, Step
from dfx_agent.judge.straggler.causes import DATA_LOADER

_NUMBER = r"[\d.]+"
_COMPUTES = rf"computes (?P<seconds>{_NUMBER}) s of each step(?: in (?P<stage>\w+))?"
_LOADS = rf"waits (?P<seconds>{_NUMBER}) s of each step for its data loader"
SHARE = rf"gets a CPU (?P<percent>{_NUMBER}) % of the time"


@dataclass(frozen=True)
class _Work:
    """Of one rank in each step; ``share``: how much of a CPU it gets while it computes."""

    seconds: float
    stage: str = "forward"
    share: float = 1.0
    loads_seconds: float = 0.0

    def step(self, variation: float) -> tuple[float, dict[tuple[str, str], float]]:
        """How long it works, and on what; no two steps are alike."""
        computes = self.seconds * variation / self.share
        parts = {IDLE: 0.0, TRANSFER: 0.0, ("stage", self.stage): computes}
        if self.loads_seconds:
            parts[DATA_LOADER] = self.loads_seconds
        return computes + self.loads_seconds, parts


class SceneSteps:
    """``closed`` returns the steps that have ended; none in a scene that describes no computing."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._work: dict[int, _Work] = {}
        self._num_steps, self._end = 0, 0.0

    def begin(self, rank: int, clauses: tuple[str, ...]) -> bool:
        """Whether these clauses describe what the rank does in each step."""
        work = None
        for clause in clauses:
            if found := clause_values(_COMPUTES, clause):
                work = _Work(float(found["seconds"]), found.get("stage", "forward"))
        if work is None:
            return False
        for clause in clauses:
            if found := clause_values(SHARE, clause):
                work = replace(work, share=float(found["percent"]) / 100)
            elif found := clause_values(_LOADS, clause):
                work = replace(work, loads_seconds=float(found["seconds"]))
            elif not clause_values(_COMPUTES, clause):
                return False
        self._work[rank] = work
        return True

    def closed(self, second: float) -> Iterator[Step]:
        """Steps that have ended since the last call, with times in seconds of the scene."""
        while self._work:
            step = self._next()
            wall = next(iter(step.ranks.values())).wall_seconds
            if self._end + wall > second:
                return
            self._num_steps, self._end = step.step, self._end + wall
            yield step

    def _next(self) -> Step:
        number = self._num_steps + 1
        usual = _Work(self._scene.step_seconds * 0.6)
        works = {
            rank: (entry := self._work.get(rank, usual), *entry.step(_variation(number, rank)))
            for rank in range(self._scene.num_ranks)
        }
        wall = max(self._scene.step_seconds, *(seconds for _, seconds, _ in works.values()))
        ranks = {
            str(rank): _rank_step(wall, seconds, parts, entry.share)
            for rank, (entry, seconds, parts) in works.items()
        }
        return Step(number, self._end, 0, ranks)


def _variation(step: int, rank: int) -> float:
    return 1 + 0.002 * ((step * 7 + rank * 3) % 5)


def _rank_step(
    wall: float, seconds: float, parts: dict[tuple[str, str], float], share: float
) -> RankStep:
    cpu_seconds = share * sum(part for (kind, _), part in parts.items() if kind == "stage")
    ran_ns = int(cpu_seconds * 1e9)
    processor = SchedTimes(ran_ns, int(ran_ns * (1 / share - 1)))
    return RankStep(
        wall,
        wall - seconds,
        parts,
        {"response": 1000.0},
        busy_seconds=cpu_seconds,
        processor=processor,
    )
