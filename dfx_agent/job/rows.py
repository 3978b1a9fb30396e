"""Builds the snapshot row of a job from facts; fields without facts are None or empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from dfx_agent.facts.layout import NO_LAYOUT, Layout
from dfx_agent.facts.measurements import RankDetails
from dfx_agent.facts.seat import ProcessId
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.job.fold import JobFold
from dfx_agent.job.rank_rows import RankInput, rank_row
from dfx_agent.job.step_rows import rank_order
from dfx_agent.job.steps import latest_rows
from dfx_agent.judge.straggler.comparable_ranks import coordinates_of
from dfx_agent.snapshot import DroppedRanks, RankRow, RunRow, StepRow, TimeSplit, Verdict

Positions = Mapping[str, Mapping[str, int]]  # rank -> axis -> its number along it

_NUM_STEPS = 8


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
            steps=self.latest_steps(_NUM_STEPS),
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
        steps = self.latest_steps(_NUM_STEPS)
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
