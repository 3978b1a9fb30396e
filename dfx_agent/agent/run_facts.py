"""One run of this node as facts that leave it, for the judge of the whole job."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import LOG_ROLE, Launch, Seat
from dfx_agent.hub import rounding
from dfx_agent.node.host.processes import rendezvous_of
from dfx_agent.node.process import Process
from dfx_agent.wire.segment import boot_id

# a process that is blocked for so long is reported more often: a hang is declared after 10 s
_STANDS_NS = 6 * 10**9
_BOOT = boot_id().hex()[:8]


class RunReporter:
    """The runs of one agent; ``facts`` as often as a hub is to know more.

    ``node``: the name under which the hub shows this node.
    ``launch``: the job that the agent was started with.
    """

    def __init__(self, node: str, launch: Launch | None = None) -> None:
        self.node = node
        self._launch = launch
        self._agent = f"{time.time_ns():x}"
        self._numbers: dict[str, int] = {}
        self._rendezvous: dict[tuple[int, int], str] = {}  # by pid and creation

    def of_runs(
        self, folds: Iterable[LocalRun], *, is_full: bool, is_last: bool
    ) -> tuple[RunFacts, ...]:
        """Facts of runs with processes.

        An empty item is first if no run, or not the launched run, has processes.
        """
        present = [fold for fold in folds if fold.processes]
        is_launching = self._launch is not None and self._launch.run not in {f.run for f in present}
        facts_of_runs = (self.facts(fold, is_full=is_full, is_last=is_last) for fold in present)
        first = (self.nothing(is_last=is_last),) if is_launching or not present else ()
        return (*first, *facts_of_runs)

    def has_news(self, folds: Iterable[LocalRun]) -> bool:
        """Whether the runs have facts that should be sent soon."""
        return any(self._has_news(fold) for fold in folds if fold.processes)

    def nothing(self, *, is_last: bool = False) -> RunFacts:
        """Reports that this node is connected and has no run."""
        now_ns = time.monotonic_ns()
        return RunFacts(
            run="", node=self.node, now_seconds=time.time(), now_ns=now_ns, boot=_BOOT,
            agent=self._agent, number=self._next(""), is_last=is_last, launch=self._launch,
        )  # fmt: skip

    def facts(self, run: LocalRun, *, is_full: bool = False, is_last: bool = False) -> RunFacts:
        """Facts at the last reading: changes since the previous call, or everything stored."""
        unsent, facts = run.facts_to_send(), run.complete_facts()
        number = self._next(run.run)
        is_full = is_full or number == 1
        seats, left = unsent.seats(map(self._seat, run.processes.values()), is_full=is_full)
        ranks = {
            role: unsent.ranks(role, rank_facts, is_full=is_full)
            for role, rank_facts in facts.ranks.items()
        }
        return replace(
            facts, node=self.node, boot=_BOOT, agent=self._agent, number=number,
            now_seconds=time.time() - (time.monotonic_ns() - facts.now_ns) / 1e9,
            is_full=is_full, is_last=is_last,
            failing=_failing(run),
            quiet_seconds=round(facts.quiet_seconds, 3),
            seats=seats,
            left=left,
            ranks=ranks,
            unjudged={
                role: tuple(map(rounding.rank, ranks)) for role, ranks in facts.unjudged.items()
            },
            totals=unsent.totals(
                [seat.id for seat in facts.seats], run.totals_of, facts.now_ns, is_full=is_full
            ),
            steps=tuple(
                unsent.role(role_steps, is_full=is_full)
                for role_steps in facts.steps
                if role_steps.role != LOG_ROLE
            ),
            engines=unsent.engines(run.engines, facts.now_ns, is_full=is_full),
            memory=unsent.memory(run.memory(), is_full=is_full),
            scalars=unsent.scalars(is_full=is_full),
            updates=tuple(map(rounding.updates, facts.updates)),
            batches=unsent.batches(is_full=is_full),
        )  # fmt: skip

    def _has_news(self, fold: LocalRun) -> bool:
        seats = map(self._seat, fold.processes.values())
        return fold.facts_to_send().has_news(seats) or fold.tracks.has_stalled_process(
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


def _failing(fold: LocalRun) -> str:
    row = next((r for r in fold.faults.rows(fold.run) if r.part in {"reading", "judgement"}), None)
    return "" if row is None else f"{row.what}: {row.message}"
