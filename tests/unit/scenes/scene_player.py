"""Plays a scene second by second before the judges of one node, and before those of a hub."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nodes_scene import HUB_SECONDS, SECOND, Hub, Node
from scene_file import Act, Scene, SceneError, clause_values
from scene_steps import SHARE, SceneSteps

from dfx_agent.facts.memory import MemoryFacts, MemoryLimit
from dfx_agent.facts.rank import Arrival, ExitStatus
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack
from dfx_agent.facts.steps import RoleSteps, Step
from dfx_agent.judge.hang.judge import HangJudge
from dfx_agent.judge.memory.judge import MemoryJudge
from dfx_agent.judge.part_of_job import only_what_is_seen
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.faults import Faults

Facts = dict[str, Any]

PIPELINES = ("node", "hub")
ROLE = "trainer"
_NODES = re.compile(r" on (node-[ab]\b|2 nodes)")
_SEQUENCE = 41
GIB, MIB = 2**30, 2**20
_LAST_SECONDS, _SPARSE_SECONDS = 15, 5
_GROWS = r"grows by (?P<mib>\d+) MiB in each step"


class Player:
    """``verdict`` at seconds that do not decrease."""

    def __init__(self, scene: Scene, pipeline: str) -> None:
        self._scene = scene
        self._nodes = list(_nodes(scene, is_split=pipeline == "hub"))
        self._judges: _NodeJudges | _HubJudges = (
            _NodeJudges(self._nodes[0]) if pipeline == "node" else _HubJudges(self._nodes)
        )
        self._acts = sorted(scene.acts, key=lambda act: act.since)
        self._steps = SceneSteps(scene)
        self._grows: dict[int, tuple[float, int]] = {}  # rank -> since when, bytes in each step
        self._second = 0.0

    def verdict(self, kind: str, at: float) -> Verdict:
        while self._second < at:  # sparsely where nobody asks for a while
            pace = 1 if at - self._second <= _LAST_SECONDS else _SPARSE_SECONDS
            self._play(min(self._second + pace, at))
        return self._judges.verdict(kind, at)

    def _play(self, second: float) -> None:
        self._second = second
        while self._acts and self._acts[0].since < second:
            self._begin(self._acts.pop(0))
        closed = list(self._steps.closed(second))
        for node in self._nodes:
            memory = tuple(self._memory(rank, node, second) for rank in node.ranks if self._grows)
            facts = node.facts(second, steps=_of_node(closed, node), memory=memory)
            self._judges.take(facts, second)

    def _begin(self, act: Act) -> None:
        for rank in act.ranks:
            node = next((n for n in self._nodes if rank in n.ranks), None)
            if node is None:
                raise SceneError(f"{act.place}: no rank {rank} in this job")
            if self._steps.begin(rank, act.clauses):
                continue
            known: Facts = {}
            for clause in act.clauses:
                if found := clause_values(_GROWS, clause):
                    self._grows[rank] = act.since, int(found["mib"]) * MIB
                else:
                    known |= _facts_of(clause, act, node, known)
            if known:
                node.stands(rank, act.since, **{"stages": (), **known})

    def _memory(self, rank: int, node: Node, second: float) -> MemoryFacts:
        """What the process holds at the end of its newest 64 steps."""
        since, growth = self._grows.get(rank, (0.0, 0))
        step_seconds = self._scene.step_seconds
        last = int(second / step_seconds)
        samples = tuple(
            (step, float(GIB + growth * max(0, step - int(since / step_seconds))))
            for step in range(max(1, last - 63), last + 1)
        )
        free, total = int(self._scene.free_gib * GIB), int(self._scene.total_gib * GIB)
        return MemoryFacts(
            process=node.seat(rank).id, step=last, step_seconds=step_seconds, samples=samples,
            limits=(MemoryLimit(node.name, "", total, free),),
        )  # fmt: skip


class _NodeJudges:
    """What an agent concludes that sees the whole job."""

    def __init__(self, node: Node) -> None:
        self._hangs, self._stragglers = HangJudge(Faults(), "r"), StragglerJudge()
        self._memory = MemoryJudge()
        self._steps: list[Step] = []
        self._newest: tuple[Verdict, ...] = ()
        self._world_size = node.world_size

    def take(self, facts: RunFacts, second: float) -> None:
        for role in facts.steps:
            self._steps += role.steps
        quiet = min(rank.quiet_seconds for rank in facts.ranks[ROLE])
        verdicts = list(self._hangs.verdicts(facts.ranks, quiet, facts.now_ns / 1e9))
        steps = RoleSteps(ROLE, tuple(self._steps), 1.0, len(facts.seats), self._world_size)
        if straggler := self._stragglers.verdict(steps):
            verdicts.append(straggler)
        seen = only_what_is_seen(verdicts, facts.seats)
        self._newest = *seen, *self._memory.verdicts(facts.memory, facts.now_seconds)

    def verdict(self, kind: str, second: float) -> Verdict:
        (found,) = (verdict for verdict in self._newest if verdict.kind == kind)
        return found


class _HubJudges:
    """What a hub concludes from documents of two nodes, whose clocks are far apart."""

    def __init__(self, nodes: list[Node]) -> None:
        self._hub = Hub(*nodes)

    def take(self, facts: RunFacts, second: float) -> None:
        self._hub.tell(facts, second)
        self._hub.run(second)

    def verdict(self, kind: str, second: float) -> Verdict:
        found = self._hub.verdict(kind, second)
        return replace(found, summary=_NODES.sub("", found.summary))


def _nodes(scene: Scene, *, is_split: bool) -> Iterator[Node]:
    numbers = range(scene.num_ranks)
    half = math.ceil(len(numbers) / 2)
    parts = {"node-a": numbers[:half], "node-b": numbers[half:]} if is_split else {"": numbers}
    durations = {
        name: (*([int(usual * SECOND)] * 7), int(longest * SECOND))
        for name, (usual, longest) in scene.stages.items()
    }
    for place, (name, ranks) in enumerate(parts.items()):
        if ranks:
            yield Node(
                name, ranks, scene.world_size, apart_seconds=(1000.0 - 1300.0 * place) * is_split,
                step_seconds=scene.step_seconds, stage_durations=durations,
            )  # fmt: skip


def _of_node(steps: list[Step], node: Node) -> tuple[RoleSteps, ...]:
    """The part of closed steps that this node sees, by its own clock."""
    own = {str(rank) for rank in node.ranks}
    reported = tuple(
        replace(
            step,
            begin_seconds=HUB_SECONDS + step.begin_seconds + node.apart_seconds,
            ranks={rank: entry for rank, entry in step.ranks.items() if rank in own},
        )
        for step in steps
    )
    return (RoleSteps(ROLE, reported, 1.0, len(own), node.world_size),) if reported else ()


def _waits(found: Mapping[str, str], node: Node, since: float, seen: Facts) -> Facts:
    operation, group = found["operation"], found.get("group", "0")
    sequence = int(found.get("number", _SEQUENCE))
    arrival = Arrival(operation, group, sequence, node.at(since))
    return {
        "arrivals": (arrival,), "is_blocked": True,
        "reached": {"0": _SEQUENCE - 1, group: sequence},
        "operations": {(group, sequence): operation}, "open_spans": (f"{operation}@{group}",),
    }  # fmt: skip


def _exchanges(found: Mapping[str, str], node: Node, since: float, seen: Facts) -> Facts:
    operation = "recv" if found["way"] == "receives from" else "send"
    arrival = Arrival(operation, "0", None, node.at(since), int(found["peer"]))
    return {"arrivals": (arrival,), "is_blocked": True}


def _stands_at(found: Mapping[str, str], node: Node, since: float, seen: Facts) -> Facts:
    frame = Frame(found["file"], int(found["line"]), found["function"])
    frames = Frame("train.py", 1, "main"), frame
    thread = ThreadStack("MainThread", 1, is_main=True, frames=frames)
    return {"stacks": ProcessStacks("guest", node.at(since), (thread,))}


def _died(found: Mapping[str, str], node: Node, since: float, seen: Facts) -> Facts:
    status = ExitStatus(None, signal.Signals[found["signal"]])
    place = seen.get("stages", ())
    return _gone("died", status, node, since) | {"open_spans": place}


def _exited(found: Mapping[str, str], node: Node, since: float, seen: Facts) -> Facts:
    status = ExitStatus(int(found["code"]), None)
    return _gone("exited", status, node, since) | {"step": None, "last_step": 9}


def _oom(found: Mapping[str, str], node: Node, since: float, seen: Facts) -> Facts:
    return _died({"signal": "SIGKILL"}, node, since, seen) | {"was_oom_killed": True}


def _gone(state: str, status: ExitStatus, node: Node, since: float) -> Facts:
    return {
        "state": state, "exit_status": status, "gone_ns": node.at(since),
        "alive_ns": node.at(since - 1), "is_outlived": True,
    }  # fmt: skip


_CLAUSES: Mapping[str, Callable[..., Facts]] = {
    r"waits in (?P<operation>\w+)(?: #(?P<number>\d+))?(?: of group (?P<group>\w+))?": _waits,
    r"(?P<way>receives from|sends to) rank (?P<peer>\d+)": _exchanges,
    r"is in (?P<stage>\w+)": lambda found, *_: {"stages": (found["stage"],)},
    r"is outside all stages": lambda *_: {"stages": ()},
    r"is at (?P<function>\w+) \((?P<file>[^:]+):(?P<line>\d+)\)": _stands_at,
    SHARE: lambda found, *_: {"processor_share": float(found["percent"]) / 100},
    r"is suspended": lambda *_: {"is_stopped": True},
    r"computes": lambda *_: {"is_at_work": True},
    r"is killed by (?P<signal>SIG\w+)": _died,
    r"exits with code (?P<code>\d+)": _exited,
    r"is killed by the out-of-memory killer": _oom,
}  # fmt: skip


def _facts_of(clause: str, act: Act, node: Node, seen: Facts) -> Facts:
    """What one clause says of a rank; ``seen``: what the clauses before it said."""
    for pattern, make in _CLAUSES.items():
        if (found := clause_values(pattern, clause)) is not None:
            return make(found, node, act.since, seen)
    raise SceneError(f"{act.place}: cannot read: {clause}")
