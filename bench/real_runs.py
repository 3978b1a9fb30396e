"""Real runs with what a reader saw in them, and when the agent's alerts would have come.

The runs are not in the repository: $DFX_BENCH_DATA is their folder (INVENTORY.csv, runs/), by
default ../shared/data. Where a reader saw the collapse (verdict, onset_row) was noted before any
detector ran.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dfx_agent.commands.backtest import signal_rows
from dfx_agent.commands.backtest.episodes import Episode
from dfx_agent.node.logs.reader import read

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
# a page is late, and not a find, after so many rows
MAX_DELAY_ROWS = 40
# an onset is marked by eye
EARLY_ROWS = 5

Row = tuple[int, dict[str, float]]


@dataclass(frozen=True)
class Labelled:
    """One real run; ``onset_row`` counts step reports from 0, None for a healthy run."""

    name: str
    rows: list[Row]
    onset_row: int | None


def labelled_runs() -> list[Labelled]:
    """Healthy and bad ones; none, and a line on stderr, where the data is not there."""
    folder = Path(os.environ.get("DFX_BENCH_DATA", DEFAULT_DATA))
    if not (folder / "INVENTORY.csv").is_file():
        print(f"bench: no INVENTORY.csv in {folder}: left out", file=sys.stderr)
        return []
    with (folder / "INVENTORY.csv").open(encoding="utf-8") as file:
        entries = [entry for entry in csv.DictReader(file) if entry["verdict"] != "AMBIGUOUS"]
    found = []
    for entry in entries:
        rows = list(signal_rows(read(folder / "runs" / f"{entry['name']}.csv.gz")))
        onset = int(entry["onset_row"]) if entry["verdict"] == "BAD" else None
        found.append(Labelled(entry["name"], rows, onset))
    return found


def healthy_runs(*, quick: bool) -> list[Labelled]:
    """All, or the three shortest."""
    healthy = [run for run in labelled_runs() if run.onset_row is None]
    return sorted(healthy, key=lambda run: len(run.rows))[:3] if quick else healthy


def pages(alerts: Sequence[Episode]) -> list[Episode]:
    return [alert for alert in alerts if alert.severity == "critical"]


def delay_rows(
    alerts: Sequence[Episode], onset_row: int, max_delay_rows: int = MAX_DELAY_ROWS
) -> int | None:
    """From the onset to the first page; None when it did not come in time."""
    delays = [page.row - onset_row for page in pages(alerts)]
    return next((max(0, d) for d in delays if -EARLY_ROWS <= d <= max_delay_rows), None)
