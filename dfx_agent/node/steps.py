"""Finished steps of one role on this node: work and waiting time of each rank.

A step is returned when every live rank has finished it, because its collectives are matched by
then. If ranks are already two steps further, the finished parts are returned one poll later; the
other ranks' parts follow when they finish the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dfx_agent.facts.layout import NO_LAYOUT, Layout, ProcessGroup, RankPosition
from dfx_agent.facts.steps import (
    IDLE,
    MAX_OPEN_STEPS,
    PEER_WAITS,
    SUPERSEDED_BY,
    TRANSFER,
    Part,
    RankStep,
    RoleSteps,
    Step,
)
from dfx_agent.node.collectives.matching import Collectives
from dfx_agent.node.process import Process
from dfx_agent.node.time.closed_step import ClosedStep


class StepWatch:
    """Collects the steps of one role and returns each when it is finished."""

    def __init__(self) -> None:
        self._overdue: set[int] = set()  # steps that later steps had superseded at the last poll
        self._open: dict[int, dict[Process, ClosedStep]] = {}
        self._process_by_label: dict[str, Process] = {}
        self._layout = LayoutWatch()

    def add(self, process: Process, closed: Iterable[ClosedStep]) -> bool:
        """Add finished steps of one process. False if it replaced another process of the rank."""
        before = self._process_by_label.setdefault(process.label, process)
        if before is not process:  # after a restart the other ranks restart too
            self._process_by_label = {process.label: process}
            self._open.clear()
            self._overdue.clear()
        for step in closed:
            if step.window.step is not None and step.window.end_ns is not None:
                self._open.setdefault(step.window.step, {})[process] = step
        return before is process

    def remove_process(self, process: Process) -> None:
        """Drop an exited process and its unfinished steps."""
        if self._process_by_label.get(process.label) is process:
            del self._process_by_label[process.label]
        for closed in self._open.values():
            closed.pop(process, None)
        self._open = {number: closed for number, closed in self._open.items() if closed}

    def close(self, living: Collection[Process], collectives: Collectives) -> list[Step]:
        """Remove and return the steps that all ``living`` ranks, or all exited ones, finished."""
        awaited, finished = living or self._process_by_label.values(), []
        for number, closed in sorted(self._open.items()):
            if number in self._overdue or all(process in closed for process in awaited):
                finished.append(_step(number, self._open.pop(number), collectives))
        latest = max((p.step for p in living if p.step is not None), default=-1)
        self._overdue = {
            number for number in self._open if not living or latest >= number + SUPERSEDED_BY
        }
        for number in sorted(self._open)[:-MAX_OPEN_STEPS]:
            del self._open[number]
        return finished

    def facts(self, role: str, ranks: Collection[Process], collectives: Collectives) -> RoleSteps:
        """Facts about the role, without its steps. ``ranks``: its known ranks, at least one."""
        ratios = [collectives.coverage_ratio(process) for process in ranks]
        coverage = min((ratio for ratio in ratios if ratio is not None), default=None)
        world_size = max(process.follower.identity.world_size for process in ranks)
        states = {p.label: state for p in ranks if (state := p.devices.state()) is not None}
        return RoleSteps(role, (), coverage, len(ranks), world_size, self.layout(ranks), states)

    def layout(self, ranks: Collection[Process]) -> Layout:
        """The layout that these ranks reported; the same object until one reports a change."""
        return self._layout.layout(ranks)


def _step(number: int, closed: Mapping[Process, ClosedStep], collectives: Collectives) -> Step:
    ranks = {}
    for process, step in closed.items():
        window = step.window
        end_ns = window.begin_ns if window.end_ns is None else window.end_ns
        transfer_ns = collectives.pop_transfer_ns(process, window.begin_ns, end_ns)
        ranks[process.label] = rank_step(step, transfer_ns / 1e9)
    begin = min(p.follower.epoch_seconds(s.window.begin_ns) for p, s in closed.items())
    end = max(p.follower.epoch_seconds(s.window.end_ns or 0) for p, s in closed.items())
    num_lost = sum(p.follower.num_lost for p in closed)
    return Step(number, begin, num_lost, ranks, last_end_seconds=end)


def rank_step(closed: ClosedStep, transfer_seconds: float) -> RankStep:
    """``transfer_seconds``: time in collectives that were matched with those of other ranks."""
    split, tokens = closed.window.split.as_seconds(), closed.tokens
    waits = {kind: sum(stages.values()) for kind, stages in split.wait_seconds.items()}
    waits_by_stage = {
        (kind, stage): seconds
        for kind, stages in split.wait_seconds.items()
        for stage, seconds in stages.items()
    }
    blocked = sum(seconds for kind, seconds in waits.items() if kind in PEER_WAITS)
    # collectives in threads next to a stage are matched too, but no training thread waits in them
    transfer = min(transfer_seconds, blocked)
    parts: dict[Part, float] = {IDLE: split.idle_seconds, TRANSFER: transfer}
    parts |= {("stage", stage): seconds for stage, seconds in split.stage_seconds.items()}
    parts |= {("wait", kind): s for kind, s in waits.items() if kind not in PEER_WAITS}
    waited = round(blocked - transfer, 9)  # clocks have nanosecond resolution
    forward, busy = closed.num_forward_tokens, closed.busy_seconds
    return RankStep(
        split.wall_seconds, waited, parts, tokens, forward, busy, closed.processor,
        closed.groups, waits_by_stage, closed.num_samples,
    )  # fmt: skip


class LayoutWatch:
    """Caches the layout of one role; a new value is built only when a rank reports a change."""

    def __init__(self) -> None:
        self._versions: list[tuple[str, int]] = []
        self._layout = NO_LAYOUT

    def layout(self, ranks: Collection[Process]) -> Layout:
        """The current layout. Groups list ranks of the whole job, not only of this node."""
        versions = [(process.label, process.follower.layout.version) for process in ranks]
        if versions != self._versions:
            self._versions = versions
            groups: dict[str, ProcessGroup] = {}
            for process in ranks:
                groups |= process.follower.layout.groups
            places = {process.label: _place(process) for process in ranks}
            self._layout = Layout(places, tuple(groups.values()))
        return self._layout


def _place(process: Process) -> RankPosition:
    layout, identity = process.follower.layout, process.follower.identity
    return RankPosition(
        identity.rank,
        identity.host,
        {axis: index for axis, (index, _) in layout.places.items()},
        {axis: size for axis, (_, size) in layout.places.items()},
        layout.peers,
    )
