"""Judges the shape ledger of a run: merges batches by step and compares boundaries.

A step is judged when every living reporting process is two steps further, because numbers of a
device arrive one step late. Steps with lost records, and steps in which a process started or died,
are skipped and counted.

Many pipelines change batches on purpose (filters, padding, several epochs). Therefore a change of
samples, ids, masks or shapes is a finding only if the same two boundaries agreed before. Moved
rows, NaN, lengths and columns are always findings.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import pairwise

from dfx_agent.base.bounded_dict import BoundedDict
from dfx_agent.facts.ledger import Crossing, LedgerNews, Progress
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.data.checks import (
    Crossed,
    Difference,
    Rank,
    compared,
    merge_into,
    total,
    wrong_at_boundary,
)
from dfx_agent.judge.data.verdict import Mismatch, data_verdict
from dfx_agent.snapshot import LedgerMismatches, LedgerRow, LedgerState, Verdict

_SETTLED_STEPS = 2
_MAX_OPEN_STEPS = 16
_MAX_BOUNDARIES = 64
_MAX_MISMATCHES = 256
_MAX_LEFT_OUT = 4096
_HABIT_STEPS = 32
_MIN_HABIT = 3
_HABIT_SHARE = 0.9
_NEED_HABIT = frozenset({"samples", "ids", "mask", "shapes"})

_Step = dict[str, dict[Rank, Crossed]]  # boundary -> rank -> its batches
_Habit = tuple[str, str, str]  # boundary before, boundary, kind


class _RankBoundary:
    """Latest batch and totals of one rank at one boundary."""

    def __init__(self, totals: Counter[str] | None = None) -> None:
        self.step: int | None = None
        self.fields: dict[tuple[str, str], float] = {}
        self.totals: Counter[str] = totals or Counter()

    def add(self, crossing: Crossing) -> None:
        if _is_left_out(crossing):
            self.totals.update(num_crossings=1, num_left_out=1)
            return
        if crossing.step != self.step:
            self.step, self.fields = crossing.step, {}
        merge_into(self.fields, crossing.fields)
        self.totals["num_crossings"] += 1
        for (name, _), value in crossing.fields.items():
            if name in {"num_nonfinite", "num_misaligned", "num_unread"}:
                self.totals[name] += max(0, int(value))


class RunLedger:
    """The shape ledger of all processes of one run."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self._skipped: set[int] = set()
        self._left_out: deque[int] = deque(
            maxlen=_MAX_LEFT_OUT
        )  # steps that some rank did not check, the latest last
        self._processes: dict[
            Rank, tuple[ProcessId, int]
        ] = {}  # value: process, and the number of records it has lost
        self._latest: dict[tuple[Rank, str], _RankBoundary] = {}
        self._dropped: BoundedDict[tuple[Rank, str], Counter[str]] = BoundedDict()
        self._habits: dict[_Habit, deque[bool]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._mismatches: deque[Mismatch] = deque(maxlen=_MAX_MISMATCHES)
        self._unsure: dict[_Habit, Mismatch] = {}
        self._order: list[str] = []
        self._latest_step: int | None = None
        self._num_samples: int | None = None  # of that step
        self.num_judged = 0
        self.num_skipped = 0
        self.num_incomplete = 0

    def add(self, news: LedgerNews) -> None:
        """Add the batches of one process since the last reading."""
        rank = news.process[:2]
        self._note_losses(rank, news)
        for crossing in news.completed:
            self._add_crossing(rank, crossing)
        self._skip_incomplete(news.given_up)

    def remove_process(self, process: ProcessId, given_up: Iterable[int | None]) -> None:
        """Remove a process that ended long ago.

        The next process of the rank continues its totals.
        """
        rank = process[:2]
        self._processes.pop(rank, None)
        self._skip_incomplete(given_up)
        for seat in [seat for seat in self._latest if seat[0] == rank]:
            self._dropped.put(seat, self._latest.pop(seat).totals)

    def settle(self, reporting: Iterable[Progress], *, is_whole: bool) -> None:
        """Judge the completed steps at the end of a reading.

        ``reporting``: processes that have reported a batch. ``is_whole``: whether this agent
        observes every rank of the job.
        """
        processes = list(reporting)
        self._note_deaths(processes)
        present = [process for process in processes if process.is_present]
        awaited = [process for process in present if process.is_living] or present
        ends = (_end(process) for process in awaited)
        end = min((step for step in ends if step is not None), default=None)
        for step in sorted(self._steps):
            if len(self._steps) > _MAX_OPEN_STEPS:
                self._skipped.add(step)
            elif end is None or step >= end:
                break
            crossed = self._steps.pop(step)
            if step in self._skipped:
                self._skipped.discard(step)
                self.num_skipped += 1
            elif step in self._left_out:
                continue
            else:
                self._judge(step, crossed, is_whole=is_whole)

    def verdict(self) -> Verdict | None:
        """None for a run that reports no ledger."""
        if not self._latest:
            return None
        skipped = self.num_skipped, self.num_incomplete
        role = next(iter(self._latest))[0][0]
        return data_verdict(
            role, self._order, self._mismatches, list(self._unsure.values()), self._latest_step,
            self.num_judged, skipped,
        )  # fmt: skip

    def state(self) -> LedgerState | None:
        """Counters for the snapshot; None for a run that reports no ledger."""
        if not self._latest:
            return None
        rows = [LedgerMismatches(*key, count) for key, count in sorted(self._counts.items())]
        counts = self.num_judged, self.num_skipped, self.num_incomplete
        return LedgerState(*counts, tuple(rows), self._latest_step, self._num_samples)

    def rows(self, role: str, label: str) -> tuple[LedgerRow, ...]:
        """The boundaries of one rank, in the order of their first batch."""
        rank = role, label
        return tuple(
            _row(boundary, latest)
            for (owner, boundary), latest in self._latest.items()
            if owner == rank and latest.fields
        )

    def _note_losses(self, rank: Rank, news: LedgerNews) -> None:
        """Skip steps in which records were lost or a process started."""
        before, num_lost = self._processes.get(rank, (None, 0))
        if before != news.process:
            self._skip(news.steps[:1])
        if news.num_lost != num_lost or before not in {None, news.process}:
            self._skip(self._steps)
            self._skip(news.steps)
        self._processes[rank] = news.process, news.num_lost

    def _note_deaths(self, reporting: Iterable[Progress]) -> None:
        for process in reporting:
            if not process.is_living:
                self._skipped.update(self._steps.keys() & {process.reported_step})

    def _skip(self, steps: Iterable[int | None]) -> None:
        self._skipped.update(step for step in steps if step is not None)

    def _skip_incomplete(self, steps: Iterable[int | None]) -> None:
        """Skip the steps of batches whose records were lost."""
        for step in steps:
            self._skip([step])
            self.num_incomplete += 1

    def _add_crossing(self, rank: Rank, crossing: Crossing) -> None:
        boundary, step = crossing.boundary, crossing.step
        if (rank, boundary) not in self._latest:
            if len(self._latest) >= _MAX_BOUNDARIES * len(self._processes):
                self.num_incomplete += 1
                return
            self._latest[rank, boundary] = _RankBoundary(self._dropped.pop((rank, boundary)))
        self._latest[rank, boundary].add(crossing)
        if _is_left_out(crossing):
            if step is not None:
                self._left_out.append(step)
            return
        if step is None:  # a batch without a step cannot be compared
            crossed = Crossed(crossing.time_ns)
            crossed.add_batch(crossing.fields)
            self._judge_boundary(None, boundary, {rank: crossed}, set())
            return
        of_step = self._steps.setdefault(step, {}).setdefault(boundary, {})
        of_step.setdefault(rank, Crossed(crossing.time_ns)).add_batch(crossing.fields)

    def _judge(self, step: int, crossed: _Step, *, is_whole: bool) -> None:
        self.num_judged += 1
        self._latest_step = step
        order = sorted(
            crossed, key=lambda name: min(batch.begin_ns for batch in crossed[name].values())
        )
        self._order = order
        self._num_samples = _num_samples(crossed[order[0]])
        unfinished: set[tuple[Rank, str]] = set()
        for boundary in order:
            self._judge_boundary(step, boundary, crossed[boundary], unfinished)
        for before, after in pairwise(order):
            found = compared(crossed[before], crossed[after], is_whole=is_whole)
            self._judge_pair(step, before, after, found)

    def _judge_boundary(
        self,
        step: int | None,
        boundary: str,
        ranks: Mapping[Rank, Crossed],
        unfinished: set[tuple[Rank, str]],
    ) -> None:
        for difference, wrong in wrong_at_boundary(ranks, unfinished):
            self._found(Mismatch(difference, step, "", boundary, wrong))

    def _judge_pair(
        self,
        step: int,
        before: str,
        after: str,
        found: list[tuple[Difference, tuple[Rank, ...]]],
    ) -> None:
        for kind in _NEED_HABIT:
            habit = self._habits.setdefault((before, after, kind), deque(maxlen=_HABIT_STEPS))
            rows = [
                Mismatch(difference, step, before, after, ranks)
                for difference, ranks in found
                if difference.kind == kind
            ]
            agreed = len(habit) >= _MIN_HABIT and sum(habit) >= _HABIT_SHARE * len(habit)
            if rows and agreed:  # a fault must not become the habit
                for row in rows:
                    self._found(row)
                continue
            habit.append(not rows)
            self._unsure.pop((before, after, kind), None)
            if rows:
                self._unsure[before, after, kind] = rows[0]
        for difference, ranks in found:
            if difference.kind not in _NEED_HABIT:
                self._found(Mismatch(difference, step, before, after, ranks))

    def _found(self, mismatch: Mismatch) -> None:
        self._counts[mismatch.boundary, mismatch.difference.kind] += 1
        self._mismatches.append(mismatch)


def _num_samples(crossed: Mapping[Rank, Crossed]) -> int | None:
    """Samples at one boundary, of the role with most: all roles have the same samples."""
    roles: dict[str, list[Crossed]] = {}
    for (role, _), batch in crossed.items():
        roles.setdefault(role, []).append(batch)
    most = max(total(ranks).get(("num_rows", ""), 0.0) for ranks in roles.values())
    return int(most) or None


def _is_left_out(crossing: Crossing) -> bool:
    """Whether the guest did not check this batch, because its steps are short."""
    return ("is_left_out", "") in crossing.fields


def _end(process: Progress) -> int | None:
    """Steps of a process before this one are complete; None if it counts no steps."""
    if process.reported_step is None:
        return None
    return (
        process.reported_step - _SETTLED_STEPS + 1 if process.is_living else process.reported_step
    )


def _row(boundary: str, latest: _RankBoundary) -> LedgerRow:
    fields = latest.fields
    by_name: dict[str, float] = {}
    for (name, _), value in fields.items():
        by_name[name] = value
    size = by_name.get("mask_size")
    return LedgerRow(
        boundary=boundary,
        step=latest.step,
        num_samples=int(by_name.get("num_rows", 0)),
        mask_ratio=by_name.get("mask_sum", 0.0) / size if size else None,
        smallest_group=_int(by_name.get("smallest_group")),
        largest_group=_int(by_name.get("largest_group")),
        schema=f"{int(by_name.get('schema', 0)):x}",
        shapes=f"{int(by_name.get('shapes', 0)):x}",
        num_crossings=latest.totals["num_crossings"],
        num_nonfinite=latest.totals["num_nonfinite"],
        num_misaligned=latest.totals["num_misaligned"],
        num_unread=latest.totals["num_unread"],
        num_left_out=latest.totals["num_left_out"],
        num_sampled=_int(by_name.get("num_sampled")),
        num_tokens=_int(by_name.get("mask_sum")),
    )


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)
