"""One job of N >= 1 nodes: its verdicts, its row, and the incidents that follow from them.

Fields of the row without facts are None or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dfx_agent.facts.layout import NO_LAYOUT, Layout
from dfx_agent.facts.measurements import RankDetails
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.job.engine_pool import IdleCheck, pool_of
from dfx_agent.job.fold import JobFold
from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.job.incidents.conclude import Judged, conclude
from dfx_agent.job.judging import JobView
from dfx_agent.job.rank_rows import RankInput, rank_row
from dfx_agent.job.step_rows import latest_ratios, rank_order, sustained_ratios, token_imbalances
from dfx_agent.job.steps import latest_rows
from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import NUM_STEPS, STAGES, pipeline_facts
from dfx_agent.judge.part_of_job import step_origin_text
from dfx_agent.judge.straggler.comparable_ranks import coordinates_of
from dfx_agent.snapshot import (
    AlertRow,
    Bottleneck,
    DroppedRanks,
    EngineFacts,
    RankRow,
    RunRow,
    StepRow,
    TimeSplit,
    Verdict,
)
from dfx_agent.snapshot.faults import sighted

__all__ = ["NUM_STEPS", "Job"]


Positions = Mapping[str, Mapping[str, int]]  # rank -> axis -> its number along it

_NUM_SHOWN = 8  # steps of a row


class JobRows:
    """Builds the rows of one job."""

    def __init__(self, fold: JobFold) -> None:
        self._fold = fold
        self._places: dict[str, RankPositions] = {}  # by role

    def run(self, verdicts: tuple[Verdict, ...], ranks: tuple[RankRow, ...]) -> RunRow:
        """The row of the job at the current time, with these verdicts and ranks."""
        fold = self._fold
        seats = list(fold.seats(of_connected=False))
        begins = [seat.created_ns / 1e9 + fold.shift(node).seconds for node, seat in seats]
        begins += [launcher.since_seconds for launcher in fold.launched]
        begins += filter(None, (_first_begin(fold, node) for node in fold.nodes.values()))
        attempts = [seat.attempt for _, seat in seats]
        attempts += [node.facts.attempt for node in fold.nodes.values()]
        return RunRow(
            run=fold.run,
            framework=fold.framework,
            attempt=max(attempts, default=0),
            begin_seconds=min(begins, default=0.0),
            ranks=ranks,
            steps=self.latest_steps(_NUM_SHOWN),
            scalars=fold.time_series.rows(fold.framework),
            num_stale_scalars=fold.time_series.num_stale,
            verdicts=verdicts,
            dropped_ranks=_dropped(fold.nodes.values()),
        )

    def latest_steps(self, num_steps: int) -> tuple[StepRow, ...]:
        """The latest shown steps of every role, oldest first."""
        return latest_rows(self._fold.steps.values(), num_steps)

    def ranks(self, details: Mapping[ProcessId, RankDetails] | None = None) -> tuple[RankRow, ...]:
        """One row per process, sorted by role and rank.

        ``details``: what stays on the node, of the processes to show. None: a hub shows all
        processes without it.
        """
        steps = self.latest_steps(_NUM_SHOWN)
        splits = {(row.role, cell.rank): cell.split for row in steps for cell in row.cells}
        return tuple(sorted(self._rows(splits, details), key=_order))

    def _rows(
        self,
        splits: Mapping[tuple[str, str], TimeSplit],
        details: Mapping[ProcessId, RankDetails] | None,
    ) -> Iterator[RankRow]:
        fold, places = self._fold, self.places()
        guard = fold.judge.faults.guard
        for node, seat in fold.seats(of_connected=False):
            label = fold.owners.own_label(node.node, seat.label)
            process = seat.id._replace(label=label)
            if details is not None and process not in details:
                continue
            with guard("rendering", fold.run, f"rank {seat.label}"):
                yield rank_row(
                    RankInput(
                        seat,
                        node.node or seat.node,
                        fold.shift(node).seconds,
                        fold.is_connected(node.node),
                        node.shown_rank((seat.role, label)),
                        node.totals_of(process),
                        details[process] if details else None,
                        splits.get((seat.role, seat.label)),
                        places.get(seat.role, {}).get(seat.label, {}),
                        fold.judge.ledger.rows(seat.role, seat.label),
                    )
                )

    def places(self) -> dict[str, Positions]:
        """Role -> layout positions of its ranks; only of ranks on connected nodes."""
        fold, labels = self._fold, dict[str, list[str]]()
        for _, seat in fold.seats():
            labels.setdefault(seat.role, []).append(seat.label)
        nodes = fold.connected
        found: dict[str, Positions] = {}
        for role, names in labels.items():
            layouts = [node.layouts.get(role, NO_LAYOUT) for node in nodes]
            positions = self._places.setdefault(role, RankPositions())
            found[role] = positions.by_rank(layouts, names, partial(fold.layout, role))
        return found


def _first_begin(fold: JobFold, node: NodeRun) -> float | None:
    """Local Unix time when the first process of this node began, even if it has ended since."""
    begin = node.facts.begin_seconds
    return None if begin is None else begin + fold.shift(node).seconds


def _dropped(nodes: Iterable[NodeRun]) -> tuple[DroppedRanks, ...]:
    """Counts of processes that ended long ago, one row per role."""
    found: dict[str, DroppedRanks] = {}
    for row in (row for node in nodes for row in node.facts.dropped):
        total = found.get(row.role, DroppedRanks(row.role, 0, 0, 0))
        found[row.role] = DroppedRanks(
            row.role,
            total.num_ranks + row.num_ranks,
            total.num_records + row.num_records,
            total.num_lost_records + row.num_lost_records,
        )
    return tuple(found.values())


def _order(row: RankRow) -> tuple[str, tuple[int, str]]:
    return row.role, rank_order(row.rank)


class RankPositions:
    """Layout positions of the ranks of one role."""

    def __init__(self) -> None:
        self._inputs: list[object] = []
        self._labels: list[str] = []
        self._places: Positions = {}

    def by_rank(
        self, inputs: Sequence[object], labels: Sequence[str], layout: Callable[[], Layout]
    ) -> Positions:
        """Positions of ``labels``. ``inputs``: inputs of ``layout``, compared by identity."""
        if not self._is_of(inputs) or self._labels != list(labels):
            self._inputs, self._labels = list(inputs), list(labels)
            self._places = coordinates_of(layout(), labels)
        return self._places

    def _is_of(self, inputs: Sequence[object]) -> bool:
        if len(inputs) != len(self._inputs):
            return False
        return all(new is old for new, old in zip(inputs, self._inputs, strict=True))


class Job:
    """One job. ``fold`` holds the reports of its nodes, ``judge`` judges them.

    ``alerts`` are the firing alerts; None before their first evaluation.
    """

    def __init__(self, fold: JobFold) -> None:
        self.fold, self.judge = fold, fold.judge
        self.rows = JobRows(fold)
        self.incidents = IncidentBook(fold.run)
        self.alerts: tuple[AlertRow, ...] | None = ()
        self._bottleneck, self._idle_check = BottleneckJudge(), IdleCheck()

    def verdicts(self, view: JobView) -> tuple[Verdict, ...]:
        """Verdicts at the current time, limited to what ``view`` can see."""
        return self.judge.verdicts(self.fold.evidence(), view)

    def concluded(self, row: RunRow, doubts: Collection[str] = ()) -> RunRow:
        """``row`` with everything that follows from its verdicts, for example incidents.

        ``doubts``: reasons why the job must not be shown as clear.
        """
        fold, judge, run = self.fold, self.judge, self.fold.run
        engines = fold.engines()
        signals, steps = judge.health.state, self.rows.latest_steps(NUM_STEPS)
        judged = Judged(
            row.verdicts, self.alerts, signals, _step_times(row, steps), row.ranks, bool(steps)
        )
        concluded = conclude(self.incidents, judged, fold.here_seconds, doubts)
        faults = judge.faults.rows(run)
        row = replace(
            row,
            engines=pool_of(engines, self._idle_check.observe(engines, row.scalars)),
            signals=signals,
            num_late_signals=judge.health.num_late,
            ledger=judge.ledger.state(),
            faults=faults,
            judged_seconds=judge.faults.judged_seconds(run),
            step_origin=step_origin_text(_all_seats(fold)),
            sustained_tokens_ratio=sustained_ratios(steps),
            latest_tokens_ratio=latest_ratios(steps),
            token_imbalance=token_imbalances(steps),
            blind=judge.faults.blindness_of(run),
            **vars(concluded),
        )
        standing = sighted(concluded.standing, faults)
        return replace(row, standing=standing, bottleneck=self._waits_for(row, steps, engines))

    def _waits_for(
        self, row: RunRow, steps: Sequence[StepRow], engines: Sequence[EngineFacts]
    ) -> Bottleneck | None:
        fold = self.fold
        with self.judge.faults.guard("judgement", fold.run, "bottleneck"):
            facts = pipeline_facts(
                steps, row.ranks, engines, row.scalars, row.verdicts,
                fold.stage_seconds(STAGES), fold.here_seconds,
            )  # fmt: skip
            return self._bottleneck.verdict(facts)
        return None


def _all_seats(fold: JobFold) -> list[Seat]:
    return [seat for _, seat in fold.seats(of_connected=False)]


def _step_times(row: RunRow, steps: Iterable[StepRow]) -> StepTimes:
    """Start times of completed steps and of the steps that ranks are in now."""
    completed = [(step.role, step.step, step.begin_seconds) for step in steps]
    running = [
        (rank.role, rank.step, rank.step_begin_seconds)
        for rank in row.ranks
        if rank.step is not None and rank.step_begin_seconds is not None
    ]
    return StepTimes((*completed, *running))
