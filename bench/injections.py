"""Faults put into healthy real runs: how many the agent pages for, and after how many rows.

The table of alerting.md, section 2.3; the sizes of the faults (bench/faults.py) are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.estimates import median, share_interval
from bench.faults import BLIPS, FAULTS, SLOW_ROWS, Fault
from bench.measurement import Bar, Result, report
from bench.real_runs import MAX_DELAY_ROWS, Labelled, Row, delay_rows, healthy_runs
from dfx_agent.commands.backtest import replay

# rows before and after an injected fault
LEAD_ROWS, TAIL_ROWS = 100, 140
# where in a run: share of its rows
PLACES = (0.25, 0.5, 0.75)

_VOTING = {"grad_norm", "entropy", "reward", "response_length"}


def measure(*, quick: bool) -> list[Result]:
    healthy = [run for run in healthy_runs(quick=quick) if _has_every_vote(run)]
    if not healthy:
        return []
    return [
        *(_paged(name, fault, healthy, Bar(0.0)) for name, fault in BLIPS.items()),
        *(_paged(name, fault, healthy, None) for name, fault in FAULTS.items()),
    ]


def _has_every_vote(run: Labelled) -> bool:
    return set().union(*(values for _, values in run.rows)) >= _VOTING


def _paged(name: str, fault: Fault, runs: Sequence[Labelled], bar: Bar | None) -> Result:
    max_delay = MAX_DELAY_ROWS + SLOW_ROWS.get(name, 0)
    delays = [_delay(run.rows, place, fault, max_delay) for run in runs for place in PLACES]
    found = [float(delay) for delay in delays if delay is not None]
    share = len(found) / len(delays)
    note = f"median delay {median(found):.0f} steps" if found else ""
    low, high = share_interval(len(found), len(delays))
    spread = {"low": low, "high": high}
    return Result(f"paged: {name}", share, "", len(delays), spread, bar=bar, note=note)


def _delay(rows: Sequence[Row], place: float, fault: Fault, max_delay: int) -> int | None:
    begin = int(len(rows) * place)
    onset = min(begin, LEAD_ROWS)
    copies = [
        (step, dict(values)) for step, values in rows[max(0, begin - LEAD_ROWS) : begin + TAIL_ROWS]
    ]
    for i, (_, values) in enumerate(copies[onset:]):
        fault(values, i)
    return delay_rows(replay(copies), onset, max_delay)


if __name__ == "__main__":
    report(measure)
