"""Time of a role between two polls, by the running totals of its processes.

The agent retains only the newest closed steps. Where steps last milliseconds, these cover less than
one cycle of the job (a rollout, then hundreds of minibatch updates); running totals cover any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dfx_agent.facts.pipeline import ProcessTime
from dfx_agent.snapshot import TimeSplit

LEAST_SECONDS = 10.0
_MOST_SECONDS = 120.0
_POLL_SECONDS = 2.0


class _Poll(NamedTuple):
    at_seconds: float
    step: int
    totals: Mapping[tuple[str, int], TimeSplit]  # by rank and pid


class TotalsWindow(NamedTuple):
    """``splits``: one for each rank, over ``num_steps`` steps, the first of them ``first_step``."""

    splits: tuple[TimeSplit, ...]
    num_steps: int
    first_step: int


class TotalsHistory:
    """Totals of the role that trains, at polls of the last two minutes."""

    def __init__(self) -> None:
        self._polls: deque[_Poll] = deque()

    def add(self, now_seconds: float, step: int, processes: Iterable[ProcessTime]) -> None:
        """Called when steps have closed; one poll in two seconds is retained."""
        polls = self._polls
        if polls and now_seconds - polls[-1].at_seconds < _POLL_SECONDS:
            return
        totals = {(p.rank, p.pid): p.totals for p in processes if p.totals.wall_seconds > 0}
        polls.append(_Poll(now_seconds, step, totals))
        while now_seconds - polls[0].at_seconds > _MOST_SECONDS:
            polls.popleft()

    def window(self) -> TotalsWindow | None:
        """None before 10 s of totals of one rank are known."""
        if not self._polls:
            return None
        first, last = self._polls[0], self._polls[-1]
        shared = first.totals.keys() & last.totals.keys()
        num_steps = last.step - first.step
        if last.at_seconds - first.at_seconds < LEAST_SECONDS or not shared or num_steps <= 0:
            return None
        splits = tuple(_difference(first.totals[key], last.totals[key]) for key in sorted(shared))
        return TotalsWindow(splits, num_steps, first.step + 1)

    @property
    def seconds(self) -> float:
        """How much time the polls cover."""
        return self._polls[-1].at_seconds - self._polls[0].at_seconds if self._polls else 0.0


def _difference(first: TimeSplit, last: TimeSplit) -> TimeSplit:
    return TimeSplit(
        last.wall_seconds - first.wall_seconds,
        last.active_seconds - first.active_seconds,
        last.idle_seconds - first.idle_seconds,
        _less(last.stage_seconds, first.stage_seconds),
        {
            kind: _less(by_stage, first.wait_seconds.get(kind, {}))
            for kind, by_stage in last.wait_seconds.items()
        },
    )


def _less(last: Mapping[str, float], first: Mapping[str, float]) -> dict[str, float]:
    return {name: max(0.0, seconds - first.get(name, 0.0)) for name, seconds in last.items()}
