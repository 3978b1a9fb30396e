"""Steps of one role as the straggler verdict needs them: what each rank worked and waited.

A step is taken when every living rank has passed it, from the ranks' own windows: it needs no row
of the run, and begins anew when a rank is restarted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dfx_agent.host.sched import SchedTimes
from dfx_agent.node.collectives.matching import Collectives
from dfx_agent.node.peer_waits import PEER_WAITS
from dfx_agent.node.process import ClosedStep, Process

# kind and name of where time went: ("stage", "rollout"), ("wait", "queue"), and these two
Part = tuple[str, str]
IDLE: Part = ("idle", "")
TRANSFER: Part = ("transfer", "")
_KEEP_STEPS = 32
_KEEP_OPEN = 8


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank in one step. ``waited_seconds`` is waiting for peers, ``parts`` is all the rest.

    Time in collectives and in explicit waits for peers counts as waiting, but for the transfer of
    matched collectives. ``num_tokens`` is None when none were told, ``num_forward_tokens`` (taken
    in by forward passes that are trained on, padding included) and ``busy_seconds`` (processor time
    of the thread that trains) where they are not known, nor ``processor``, by the kernel's count.
    """

    wall_seconds: float
    waited_seconds: float
    parts: Mapping[Part, float]
    num_tokens: float | None
    num_forward_tokens: float | None = None
    busy_seconds: float | None = None
    processor: SchedTimes | None = None

    @property
    def work_seconds(self) -> float:
        return self.wall_seconds - self.waited_seconds

    @classmethod
    def of(cls, closed: ClosedStep, transfer_seconds: float) -> RankStep:
        split, tokens = closed.window.split.as_seconds(), closed.tokens
        waits = {kind: sum(stages.values()) for kind, stages in split.wait_seconds.items()}
        blocked = sum(seconds for kind, seconds in waits.items() if kind in PEER_WAITS)
        # collectives in threads beside a stage are matched too, but nobody waits in them
        transfer = min(transfer_seconds, blocked)
        parts: dict[Part, float] = {IDLE: split.idle_seconds, TRANSFER: transfer}
        parts |= {("stage", stage): seconds for stage, seconds in split.stage_seconds.items()}
        parts |= {("wait", kind): s for kind, s in waits.items() if kind not in PEER_WAITS}
        num_tokens = sum(tokens.values()) if tokens else None
        waited = round(blocked - transfer, 9)  # clocks tell nanoseconds
        forward, busy = closed.num_forward_tokens, closed.busy_seconds
        return cls(
            split.wall_seconds, waited, parts, num_tokens, forward, busy, closed.processor
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """A step that all living ranks have passed. ``num_lost``: records lost by then, all ranks."""

    step: int
    begin_seconds: float
    num_lost: int
    ranks: Mapping[str, RankStep]


class StepWatch:
    """The steps of one role, as they close."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque(maxlen=_KEEP_STEPS)
        self._open: dict[int, dict[Process, ClosedStep]] = {}
        self._known: dict[str, Process] = {}

    def add(self, process: Process, closed: Iterable[ClosedStep]) -> None:
        """Steps that one process has passed."""
        before = self._known.setdefault(process.label, process)
        if before is not process:  # a restart: the others begin anew too
            self._known = {process.label: process}
            self._open.clear()
            self.steps.clear()
        for step in closed:
            if step.window.step is not None and step.window.end_ns is not None:
                self._open.setdefault(step.window.step, {})[process] = step

    def let_go(self, process: Process) -> None:
        """It ended long ago."""
        if self._known.get(process.label) is process:
            del self._known[process.label]
        for closed in self._open.values():
            closed.pop(process, None)
        self._open = {number: closed for number, closed in self._open.items() if closed}

    def close(self, living: Collection[Process], collectives: Collectives) -> None:
        """Take the steps that all of ``living`` have passed, at the end of the job all ranks."""
        awaited = living or self._known.values()
        for number, closed in sorted(self._open.items()):
            if all(process in closed for process in awaited):
                self.steps.append(_step(number, self._open.pop(number), collectives))
        for number in sorted(self._open)[:-_KEEP_OPEN]:
            del self._open[number]


def _step(number: int, closed: Mapping[Process, ClosedStep], collectives: Collectives) -> Step:
    ranks = {}
    for process, step in closed.items():
        window = step.window
        end_ns = window.begin_ns if window.end_ns is None else window.end_ns
        transfer_ns = collectives.take_transfer_ns(process, window.begin_ns, end_ns)
        ranks[process.label] = RankStep.of(step, transfer_ns / 1e9)
    begin = min(p.follower.epoch_seconds(s.window.begin_ns) for p, s in closed.items())
    return Step(number, begin, sum(p.follower.num_lost for p in closed), ranks)
