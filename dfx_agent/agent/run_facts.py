"""One run of this node as facts that leave it, for the judge of the whole job."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from dfx_agent.agent.run import RunFold
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import LOG_ROLE, ROLLOUT_SIDE, Launch, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.hub import rounding
from dfx_agent.node.process import Process
from dfx_agent.node.rendezvous import rendezvous_of
from dfx_agent.node.updates import update_counts
from dfx_agent.wire.segment import boot_id

# who stands for so long is told of more often: a hang is said after 10 s
_STANDS_NS = 6 * 10**9
_BOOT = boot_id().hex()[:8]


class RunTeller:
    """The runs of one agent; ``facts`` as often as a hub is to know more.

    ``launch``: the job that the agent was started with.
    """

    def __init__(self, node: str, launch: Launch | None = None) -> None:
        self._node = node
        self._launch = launch
        self._agent = f"{time.time_ns():x}"
        self._numbers: dict[str, int] = {}
        self._rendezvous: dict[tuple[int, int], str] = {}  # by pid and creation

    def of_runs(
        self, folds: Iterable[RunFold], *, is_full: bool, is_last: bool
    ) -> tuple[RunFacts, ...]:
        """Of those that have somebody; at least that there is none, or none yet of the launch."""
        known = [fold for fold in folds if fold.processes]
        is_launching = self._launch is not None and self._launch.run not in {f.run for f in known}
        told = (self.facts(fold, is_full=is_full, is_last=is_last) for fold in known)
        first = (self.nothing(is_last=is_last),) if is_launching or not known else ()
        return (*first, *told)

    def has_news(self, folds: Iterable[RunFold]) -> bool:
        """Whether something of them is to be told soon."""
        return any(self._has_news(fold) for fold in folds if fold.processes)

    def nothing(self, *, is_last: bool = False) -> RunFacts:
        """That this node is there and has no run."""
        now_ns = time.monotonic_ns()
        return RunFacts(
            run="", node=self._node, now_seconds=time.time(), now_ns=now_ns, boot=_BOOT,
            agent=self._agent, number=self._next(""), is_last=is_last, launch=self._launch,
        )  # fmt: skip

    def facts(self, fold: RunFold, *, is_full: bool = False, is_last: bool = False) -> RunFacts:
        """As of the last reading: what came since the facts before, or all that is kept."""
        teller, processes = fold.told(), list(fold.processes.values())
        number = self._next(fold.run)
        is_full = is_full or number == 1
        trained = [p for p in processes if p.filed_as.role != LOG_ROLE]
        now_ns = fold.tracks.now_ns
        now_seconds = time.time() - (time.monotonic_ns() - now_ns) / 1e9
        seats, left = teller.seats(map(self._seat, processes), is_full=is_full)
        ranks = {
            role: teller.ranks(role, _opened(fold, role, known), is_full=is_full)
            for role, known in fold.tracks.all_facts(now_ns).items()
        }
        return RunFacts(
            run=fold.run, node=self._node, now_seconds=now_seconds, now_ns=now_ns, boot=_BOOT,
            agent=self._agent, number=number, is_full=is_full, is_last=is_last,
            failing=_failing(fold),
            framework=fold.framework,
            quiet_seconds=round(fold.tracks.quiet_seconds(now_ns), 3),
            seats=seats,
            left=left,
            ranks=ranks,
            steps=tuple(self._role_steps(fold, trained, is_full=is_full)),
            memory=teller.memory(fold.memory.facts(_seen(trained)), is_full=is_full),
            scalars=teller.scalars(is_full=is_full),
            updates=tuple(map(rounding.updates, update_counts(processes))),
            batches=teller.batches(is_full=is_full),
            progress=tuple(fold.crossings.progress(processes)),
            reported=fold.reported,
        )  # fmt: skip

    def _has_news(self, fold: RunFold) -> bool:
        seats = map(self._seat, fold.processes.values())
        return fold.told().has_news(seats) or fold.tracks.anybody_stands(
            fold.tracks.now_ns, _STANDS_NS
        )

    def _next(self, run: str) -> int:
        number = self._numbers[run] = self._numbers.get(run, 0) + 1
        return number

    def _seat(self, process: Process) -> Seat:
        key = process.pid, process.id.created_ns
        if key not in self._rendezvous and process.is_living:
            self._rendezvous[key] = rendezvous_of(process.pid)
        return replace(process.seat, rendezvous=self._rendezvous.get(key, ""))

    def _role_steps(
        self, fold: RunFold, trained: Iterable[Process], *, is_full: bool
    ) -> Iterable[RoleSteps]:
        known = list(trained)
        for role in dict.fromkeys(process.filed_as.role for process in known):
            ranks = [process for process in known if process.filed_as.role == role]
            told = fold.told().role(fold.role_steps(role, ranks), is_full=is_full)
            yield replace(told, steps=fold.told().steps(role, is_full=is_full))


def _seen(processes: Iterable[Process]) -> list[Process]:
    """Without those of which spans alone are told."""
    return [process for process in processes if not process.follower.is_told_late]


def _opened(fold: RunFold, role: str, ranks: Iterable[RankFacts]) -> Iterable[RankFacts]:
    """With begins of what is open, how far records are, and what a pipeline is judged by."""
    for rank in ranks:
        process = fold.processes.get((role, rank.label))
        opened = sorted(process.inflight, key=lambda event: event.span) if process else ()
        yield replace(
            rank,
            opened_ns=tuple(event.begin_ns for event in opened),
            told_step=process.told_step if process else None,
            num_records=process.follower.num_read if process else 0,
            totals=process.totals().split.as_seconds()
            if process and role in ROLLOUT_SIDE
            else None,
            queue_depth=dict(process.queues) if process else {},
        )


def _failing(fold: RunFold) -> str:
    row = next((r for r in fold.faults.rows(fold.run) if r.part in {"reading", "judgement"}), None)
    return "" if row is None else f"{row.what}: {row.message}"
