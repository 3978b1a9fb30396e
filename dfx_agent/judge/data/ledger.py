"""The shape ledger of a run: crossings folded by step, compared, judged.

A step is judged when every living process that reports is two steps past it: numbers that come
from a device arrive a step later. A step in which records were lost, a process began or died is
skipped and counted. What a pipeline does in most steps (filters, padding, several epochs) is its
habit and no fault: a change of samples, ids, masks or shapes is found only where the same two
boundaries agreed before. Rows that moved, NaN, lengths and columns need no habit.
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
    wrong_here,
)
from dfx_agent.judge.data.verdict import Mismatch, data_verdict
from dfx_agent.snapshot import LedgerMismatches, LedgerRow, LedgerState, Verdict

_SETTLED_STEPS = 2
_MAX_OPEN_STEPS = 16
_MAX_BOUNDARIES = 64
_KEEP_MISMATCHES = 256
_MAX_LEFT_OUT = 4096
_HABIT_STEPS = 32
_MIN_HABIT = 3
_HABIT_SHARE = 0.9
_NEED_HABIT = frozenset({"samples", "ids", "mask", "shapes"})

_Step = dict[str, dict[Rank, Crossed]]  # boundary -> rank -> what crossed it
_Habit = tuple[str, str, str]  # boundary before, boundary, kind


class _Newest:
    """One rank at one boundary since it was first seen."""

    def __init__(self, totals: Counter[str] | None = None) -> None:
        self.step: int | None = None
        self.fields: dict[tuple[str, str], float] = {}
        self.totals: Counter[str] = totals or Counter()

    def take(self, crossing: Crossing) -> None:
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
    """All processes of one run."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self._skipped: set[int] = set()
        self._left_out: deque[int] = deque(
            maxlen=_MAX_LEFT_OUT
        )  # steps that some rank did not check, latest last
        self._processes: dict[Rank, tuple[ProcessId, int]] = {}  # with the records it had lost
        self._newest: dict[tuple[Rank, str], _Newest] = {}
        self._dropped: BoundedDict[tuple[Rank, str], Counter[str]] = BoundedDict()
        self._habits: dict[_Habit, deque[bool]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._mismatches: deque[Mismatch] = deque(maxlen=_KEEP_MISMATCHES)
        self._unsure: dict[_Habit, Mismatch] = {}
        self._order: list[str] = []
        self._newest_step: int | None = None
        self._num_samples: int | None = None  # of that step
        self.num_judged = 0
        self.num_skipped = 0
        self.num_incomplete = 0

    def add(self, news: LedgerNews) -> None:
        """What the last reading of a process brought."""
        rank = news.process[:2]
        self._note_losses(rank, news)
        for crossing in news.crossings:
            self._take(rank, crossing)
        self._give_up(news.given_up)

    def let_go(self, process: ProcessId, given_up: Iterable[int | None]) -> None:
        """It ended long ago: its totals are kept for the next process of the rank."""
        rank = process[:2]
        self._processes.pop(rank, None)
        self._give_up(given_up)
        for seat in [seat for seat in self._newest if seat[0] == rank]:
            self._dropped.put(seat, self._newest.pop(seat).totals)

    def settle(self, reporting: Iterable[Progress], *, is_whole: bool) -> None:
        """All processes were read: judge the steps that are over.

        ``reporting``: all that have shown a batch. ``is_whole``: every rank of the job is followed
        by this agent.
        """
        known = list(reporting)
        self._note_deaths(known)
        present = [process for process in known if process.is_present]
        awaited = [process for process in present if process.is_living] or present
        end = min((e for p in awaited if (e := _end(p)) is not None), default=None)
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
        if not self._newest:
            return None
        skipped = self.num_skipped, self.num_incomplete
        role = next(iter(self._newest))[0][0]
        return data_verdict(
            role, self._order, self._mismatches, list(self._unsure.values()), self._newest_step,
            self.num_judged, skipped,
        )  # fmt: skip

    def state(self) -> LedgerState | None:
        """For contract 2; None for a run that reports no ledger."""
        if not self._newest:
            return None
        rows = [LedgerMismatches(*key, count) for key, count in sorted(self._counts.items())]
        counts = self.num_judged, self.num_skipped, self.num_incomplete
        return LedgerState(*counts, tuple(rows), self._newest_step, self._num_samples)

    def rows(self, role: str, label: str) -> tuple[LedgerRow, ...]:
        """The boundaries of one rank, as they were crossed."""
        rank = role, label
        return tuple(
            _row(boundary, newest)
            for (r, boundary), newest in self._newest.items()
            if r == rank and newest.fields
        )

    def _note_losses(self, rank: Rank, news: LedgerNews) -> None:
        """What was there when records were lost, or a process began, is not whole."""
        known, num_lost = self._processes.get(rank, (None, 0))
        if known != news.process:
            self._skip(news.steps[:1])
        if news.num_lost != num_lost or known not in {None, news.process}:
            self._skip(self._steps)
            self._skip(news.steps)
        self._processes[rank] = news.process, news.num_lost

    def _note_deaths(self, reporting: Iterable[Progress]) -> None:
        for process in reporting:
            if not process.is_living:
                self._skipped.update(self._steps.keys() & {process.told_step})

    def _skip(self, steps: Iterable[int | None]) -> None:
        self._skipped.update(step for step in steps if step is not None)

    def _give_up(self, steps: Iterable[int | None]) -> None:
        """Records of these crossings were lost."""
        for step in steps:
            self._skip([step])
            self.num_incomplete += 1

    def _take(self, rank: Rank, crossing: Crossing) -> None:
        boundary, step = crossing.boundary, crossing.step
        if (rank, boundary) not in self._newest:
            if len(self._newest) >= _MAX_BOUNDARIES * len(self._processes):
                self.num_incomplete += 1
                return
            self._newest[rank, boundary] = _Newest(self._dropped.pop((rank, boundary)))
        self._newest[rank, boundary].take(crossing)
        if _is_left_out(crossing):
            if step is not None:
                self._left_out.append(step)
            return
        if step is None:  # nothing to compare it with
            crossed = Crossed(crossing.time_ns)
            crossed.take(crossing.fields)
            self._judge_boundary(None, boundary, {rank: crossed}, set())
            return
        of_step = self._steps.setdefault(step, {}).setdefault(boundary, {})
        of_step.setdefault(rank, Crossed(crossing.time_ns)).take(crossing.fields)

    def _judge(self, step: int, crossed: _Step, *, is_whole: bool) -> None:
        self.num_judged += 1
        self._newest_step = step
        order = sorted(crossed, key=lambda name: min(c.begin_ns for c in crossed[name].values()))
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
        for difference, wrong in wrong_here(ranks, unfinished):
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
            rows = [Mismatch(d, step, before, after, ranks) for d, ranks in found if d.kind == kind]
            agreed = len(habit) >= _MIN_HABIT and sum(habit) >= _HABIT_SHARE * len(habit)
            if rows and agreed:  # the fault must not become the habit
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
    """At one boundary, of the role that shows most of them: roles show the same samples."""
    roles: dict[str, list[Crossed]] = {}
    for (role, _), of_rank in crossed.items():
        roles.setdefault(role, []).append(of_rank)
    most = max(total(ranks).get(("num_rows", ""), 0.0) for ranks in roles.values())
    return int(most) or None


def _is_left_out(crossing: Crossing) -> bool:
    """Whether the rank did not check the batch: its steps are short."""
    return ("is_left_out", "") in crossing.fields


def _end(process: Progress) -> int | None:
    """Steps before this one are complete; None for a process that counts none."""
    if process.told_step is None:
        return None
    return process.told_step - _SETTLED_STEPS + 1 if process.is_living else process.told_step


def _row(boundary: str, newest: _Newest) -> LedgerRow:
    fields = newest.fields
    by_name: dict[str, float] = {}
    for (name, _), value in fields.items():
        by_name[name] = value
    size = by_name.get("mask_size")
    return LedgerRow(
        boundary=boundary,
        step=newest.step,
        num_samples=int(by_name.get("num_rows", 0)),
        mask_ratio=by_name.get("mask_sum", 0.0) / size if size else None,
        smallest_group=_whole(by_name.get("smallest_group")),
        largest_group=_whole(by_name.get("largest_group")),
        schema=f"{int(by_name.get('schema', 0)):x}",
        shapes=f"{int(by_name.get('shapes', 0)):x}",
        num_crossings=newest.totals["num_crossings"],
        num_nonfinite=newest.totals["num_nonfinite"],
        num_misaligned=newest.totals["num_misaligned"],
        num_unread=newest.totals["num_unread"],
        num_left_out=newest.totals["num_left_out"],
        num_sampled=_whole(by_name.get("num_sampled")),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
