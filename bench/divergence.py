"""The agent's alerts over real training runs: false pages, collapses found, delay.

The runs are not in the repository: $DFX_BENCH_DATA is their folder (INVENTORY.csv, runs/), by
default ../shared/data; without it this bench is left out. Where a reader saw the collapse (verdict,
onset_row) was noted before any detector ran. Few real runs collapse, so faults are also injected
into the healthy ones (bench/injections.py); their sizes are ours.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.estimates import median, quantile
from bench.injections import BLIPS, FAULTS, Fault
from bench.measurement import Bar, Result, report
from dfx_agent.alerting.backtest import Episode
from dfx_agent.commands.backtest import replay, signal_rows
from dfx_agent.ingest.reader import read

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
# a page is late, and not a find, after so many rows
MAX_DELAY_ROWS = 40
# an onset is marked by eye
EARLY_ROWS = 5
# rows before and after an injected fault
LEAD_ROWS, TAIL_ROWS = 100, 140

# where in a run: share of its rows
PLACES = (0.25, 0.5, 0.75)

_VOTING = {"grad_norm", "entropy", "reward", "response_length"}

Row = tuple[int, dict[str, float]]


@dataclass(frozen=True)
class Labelled:
    """One real run; ``onset_row`` counts step reports from 0, None for a healthy run."""

    name: str
    rows: list[Row]
    onset_row: int | None


def measure(*, quick: bool) -> list[Result]:
    folder = Path(os.environ.get("DFX_BENCH_DATA", DEFAULT_DATA))
    if not (folder / "INVENTORY.csv").is_file():
        print(f"bench: no INVENTORY.csv in {folder}: divergence is left out", file=sys.stderr)
        return []
    runs = _labelled(folder)
    healthy = [run for run in runs if run.onset_row is None]
    bad = [run for run in runs if run.onset_row is not None]
    if quick:
        healthy = sorted(healthy, key=lambda run: len(run.rows))[:3]
    return [
        _false_pages(healthy),
        *_found("collapses", [_delay(replay(run.rows), run.onset_row or 0) for run in bad]),
        *(_blips_paged(name, fault, healthy) for name, fault in BLIPS.items()),
        *(_injected(name, fault, healthy) for name, fault in FAULTS.items()),
    ]


def _labelled(folder: Path) -> list[Labelled]:
    with (folder / "INVENTORY.csv").open(encoding="utf-8") as file:
        entries = [entry for entry in csv.DictReader(file) if entry["verdict"] != "AMBIGUOUS"]
    found = []
    for entry in entries:
        rows = list(signal_rows(read(folder / "runs" / f"{entry['name']}.csv.gz")))
        onset = int(entry["onset_row"]) if entry["verdict"] == "BAD" else None
        found.append(Labelled(entry["name"], rows, onset))
    return found


def _pages(alerts: Sequence[Episode]) -> list[Episode]:
    return [alert for alert in alerts if alert.severity == "critical"]


def _delay(alerts: Sequence[Episode], onset_row: int) -> int | None:
    """Rows from the onset to the first page; None when it did not come in time."""
    delays = [page.row - onset_row for page in _pages(alerts)]
    return next((max(0, d) for d in delays if -EARLY_ROWS <= d <= MAX_DELAY_ROWS), None)


def _false_pages(runs: Sequence[Labelled]) -> Result:
    pages = [len(_pages(replay(run.rows))) for run in runs]
    num_rows = sum(len(run.rows) for run in runs)
    rate = 100 * sum(pages) / num_rows
    # 3 / n: where nothing was seen, the upper end of its 95 % interval
    spread = {"low": rate, "high": rate if sum(pages) else 300 / num_rows}
    note = f"{sum(pages)} pages, {len(runs)} healthy runs; 3 / n where none was seen"
    name = "false pages per 100 healthy steps"
    return Result(name, rate, "", num_rows, spread, bar=Bar(0.01), note=note)


def _found(what: str, delays: Sequence[int | None], note: str = "") -> list[Result]:
    if not delays:
        return []
    found = [float(delay) for delay in delays if delay is not None]
    share = len(found) / len(delays)
    spread = {"low": share, "high": share}
    results = [
        Result(f"{what} found", share, "", len(delays), spread, bar=Bar(0.9, at_least=True),
               note=note)
    ]  # fmt: skip
    if found:
        spread = {"p10": quantile(found, 0.1), "p90": quantile(found, 0.9)}
        name = f"{what}, onset to page"
        results.append(Result(name, median(found), "steps", len(found), spread, bar=Bar(5)))
    return results


def _injected(name: str, fault: Fault, runs: Sequence[Labelled]) -> Result:
    """Without a bar: the sizes are ours."""
    delays = _inject(fault, runs)
    found = [float(delay) for delay in delays if delay is not None]
    share = len(found) / len(delays) if delays else 0.0
    note = f"median delay {median(found):.0f} steps" if found else ""
    return Result(f"injected: {name}", share, "", len(delays), {"low": share, "high": share},
                  note=note)  # fmt: skip


def _blips_paged(name: str, fault: Fault, runs: Sequence[Labelled]) -> Result:
    delays = _inject(fault, runs)
    share = sum(delay is not None for delay in delays) / len(delays) if delays else 0.0
    spread = {"low": share, "high": share}
    return Result(f"paged for {name}", share, "", len(delays), spread, bar=Bar(0.0))


def _inject(fault: Fault, runs: Sequence[Labelled]) -> list[int | None]:
    """The delay at each place of each run that has every signal of the votes."""
    delays = []
    for run in runs:
        if not set().union(*(values for _, values in run.rows)) >= _VOTING:
            continue
        for place in PLACES:
            begin = int(len(run.rows) * place)
            rows = run.rows[max(0, begin - LEAD_ROWS) : begin + TAIL_ROWS]
            onset = min(begin, LEAD_ROWS)
            delays.append(_delay(replay(_changed(rows, onset, fault)), onset))
    return delays


def _changed(rows: Sequence[Row], onset: int, fault: Fault) -> list[Row]:
    copies = [(step, dict(values)) for step, values in rows]
    for i, (_, values) in enumerate(copies[onset:]):
        fault(values, i)
    return copies


if __name__ == "__main__":
    report(measure)
