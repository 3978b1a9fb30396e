"""Nodes of a job that tell a hub what they see, by hand: no process, no clock but the test's.

Each node has clocks of its own, far from those of the hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dfx_agent.facts.document import dumped
from dfx_agent.facts.rank import Arrival, RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import Seat
from dfx_agent.facts.steps import GroupTime, RankStep, RoleSteps, Step
from dfx_agent.job.folds import JobFolds
from dfx_agent.snapshot import RunRow, Verdict

SECOND = 10**9
HUB_NS, HUB_SECONDS = 500 * SECOND, 1e9
WARM = {"backward": (SECOND,) * 8}


@dataclass
class Node:
    """``apart_seconds``: how much its clocks are ahead of the hub's."""

    name: str
    ranks: Sequence[int]
    world_size: int = 4
    apart_seconds: float = 1000.0
    rendezvous: str = "10.0.0.1:29500"
    run: str = "r"
    number: int = 0
    agent: str = "1"
    step_seconds: float = 1.0
    stage_durations: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: WARM)
    states: dict[int, RankFacts] = field(default_factory=dict)

    def facts(self, seconds: float, **known) -> RunFacts:
        """As of so many seconds after the scene began."""
        self.number += 1
        now_ns = self.at(seconds)
        ranks = tuple(self.rank(rank, now_ns) for rank in self.ranks)
        return RunFacts(
            run=self.run, node=self.name, now_ns=now_ns, boot=self.name, agent=self.agent,
            now_seconds=HUB_SECONDS + seconds + self.apart_seconds, number=self.number,
            is_full=known.pop("is_full", self.number == 1),
            seats=tuple(self.seat(rank) for rank in self.ranks),
            ranks={"trainer": ranks}, **known,
        )  # fmt: skip

    def at(self, seconds: float) -> int:
        """That instant on its monotonic clock."""
        return int(HUB_NS + (seconds + self.apart_seconds) * SECOND)

    def seat(self, rank: int) -> Seat:
        state = self.states[rank].state if rank in self.states else "live"
        return Seat(
            role="trainer", label=str(rank), rank=rank, local_rank=rank - self.ranks[0],
            world_size=self.world_size, node=self.name, pid=100 + rank, created_ns=7 + rank,
            state=state, rendezvous=self.rendezvous,
        )  # fmt: skip

    def rank(self, rank: int, now_ns: int) -> RankFacts:
        """In a step, moving, unless it was put elsewhere."""
        known = self.states.get(rank) or RankFacts(
            label=str(rank), rank=rank, pid=100 + rank, world_size=self.world_size, step=9,
            num_steps=9, step_durations=(int(self.step_seconds * SECOND),) * 9, has_groups=True,
            reached={"0": 40}, stages=("backward",), stage_durations=self.stage_durations,
            moved_ns=now_ns, num_still=9, begin_ns=now_ns - 300 * SECOND,
        )  # fmt: skip
        return replace(known, now_ns=now_ns)

    def stands(self, rank: int, since: float, **known) -> None:
        """From then on, where it was."""
        now_ns = self.at(since)
        self.states.pop(rank, None)
        self.states[rank] = replace(self.rank(rank, now_ns), **known)

    def waits(self, rank: int, since: float, sequence: int, operation: str = "all_reduce") -> None:
        """In a collective of all ranks, from then on."""
        arrival = Arrival(operation, "0", sequence, self.at(since))
        self.stands(
            rank, since, arrivals=(arrival,), is_blocked=True, reached={"0": sequence},
            operations={("0", sequence): operation}, stages=(), open_spans=(f"{operation}@0",),
        )  # fmt: skip


class Hub:
    """What nodes tell, and what is concluded so many seconds after the scene began."""

    def __init__(self, *nodes: Node) -> None:
        self.folds = JobFolds()
        self.nodes = {node.name: node for node in nodes}

    def tell(self, facts: RunFacts, seconds: float) -> bool:
        """It comes at that instant."""
        return self.folds.receive(dumped(facts), facts.node, *self.at(seconds))

    def hear(self, seconds: float, *, without: str = "") -> None:
        """All nodes tell what they see at that instant, but for one."""
        for node in self.nodes.values():
            if node.name != without:
                self.tell(node.facts(seconds), seconds)

    def at(self, seconds: float) -> tuple[int, float]:
        return int(HUB_NS + seconds * SECOND), HUB_SECONDS + seconds

    def run(self, seconds: float, run: str = "r") -> RunRow:
        return {row.run: row for row in self.folds.snapshot(*self.at(seconds)).runs}[run]

    def verdict(self, kind: str, seconds: float) -> Verdict:
        verdicts = self.run(seconds).verdicts
        (found,) = (v for v in verdicts if v.kind == kind and v.role in {"trainer", ""})
        return found

    def follow(self, begin: int, end: int, *, without: str = "") -> None:
        """Second by second."""
        for second in range(begin, end):
            self.hear(second, without=without)
            self.run(second)


def stepped(
    step: int, begin: float, ranks: Mapping[str, tuple[float, float]], wall: float = 1.0
) -> RoleSteps:
    """One closed step: rank -> (seconds of work, seconds in collectives)."""
    reported = {
        label: RankStep(
            wall, blocked, {("idle", ""): 0.0, ("transfer", ""): 0.0, ("stage", "backward"): work},
            {"response": 100.0}, groups={"0": GroupTime(4, 4 * step, blocked)},
            waits={("collective", "backward"): blocked},
        )
        for label, (work, blocked) in ranks.items()
    }  # fmt: skip
    return RoleSteps("trainer", (Step(step, begin, 0, reported),), 1.0, len(reported), 4)
