"""The alerts over labelled logs in their native formats, read as ``backtest`` reads them.

$DFX_BENCH_DATA/native holds logs with INVENTORY.csv: verdict, and of a collapse its row from 1.
Rules were built on most of them. A third was held out, by repository, and is counted by itself:
see ``HELD_OUT`` for what was inspected nevertheless.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.real_runs import DEFAULT_DATA, EARLY_ROWS, delay_rows, pages
from dfx_agent.commands.backtest.error_rates import poisson, wilson
from dfx_agent.commands.backtest.replay import SignalRows, SignalValues, replay
from dfx_agent.node.logs.reader import open_logs
from dfx_agent.node.logs.run import UnreadableLogError

HELD_OUT = """Held out are the repositories whose name has a SHA-256 that begins with a byte
divisible by 3. Two rules were settled after we had read one of them (a Gemma notebook that plays
2048): a reference KL counts from 0.03 nats on, and its blow-up only where the reward is lower. The
threshold of the warning DfxReferenceKlDrift was chosen on all of them; no page depends on it."""

_HEAD = """| logs | runs | judged | healthy rows | collapses found | 95 % | median delay, rows | \
median error of the onset, rows | false pages per 100 rows | 95 % |
|---|---|---|---|---|---|---|---|---|---|
"""


@dataclass
class Group:
    """Counts of one part of the logs."""

    name: str
    num_runs: int = 0
    num_judged: int = 0
    num_healthy_rows: int = 0
    num_collapses: int = 0
    num_false_pages: int = 0
    delays: list[int] = field(default_factory=list)
    onset_errors: list[int] = field(default_factory=list)

    def add(self, entry: dict[str, str], rows: Sequence[SignalValues], *, is_judged: bool) -> None:
        self.num_runs += 1
        self.num_judged += is_judged
        if entry["verdict"] == "AMBIGUOUS":
            return
        alerts = replay(rows)
        onset_row = int(entry["onset_row"]) - 1 if entry["verdict"] == "BAD" else None
        healthy = len(rows) if onset_row is None else max(0, onset_row - EARLY_ROWS)
        self.num_healthy_rows += healthy
        self.num_false_pages += sum(page.row < healthy for page in pages(alerts))
        if onset_row is None:
            return
        self.num_collapses += 1
        delay = delay_rows(alerts, onset_row)
        if delay is not None:
            self.delays.append(delay)
            row_of = {step: row for row, (step, _) in enumerate(rows)}
            steps = (page.onset_step for page in pages(alerts) if page.row >= healthy)
            onset_step = next(step for step in steps if step is not None)
            self.onset_errors.append(abs(row_of[onset_step] - onset_row))

    def line(self) -> str:
        low, high = wilson(len(self.delays), self.num_collapses)
        rows = self.num_healthy_rows
        fewest, most = (100 * count / rows for count in poisson(self.num_false_pages))
        cells = [
            self.name, f"{self.num_runs}", f"{self.num_judged}", f"{rows:,}",
            f"{len(self.delays)} of {self.num_collapses}", f"{low:.0%} to {high:.0%}",
            f"{median(self.delays):g}", f"{median(self.onset_errors):g}",
            f"{100 * self.num_false_pages / rows:.3g} ({self.num_false_pages})",
            f"{fewest:.2g} to {most:.2g}",
        ]  # fmt: skip
        return f"| {' | '.join(cells)} |\n"


def is_held_out(repository: str) -> bool:
    return hashlib.sha256(repository.encode()).digest()[0] % 3 == 0


def table(folder: Path | None = None) -> str:
    """Markdown, and below it what was held out."""
    folder = folder or Path(os.environ.get("DFX_BENCH_DATA", DEFAULT_DATA)) / "native"
    built, held_out = Group("rules were built on"), Group("held out")
    with (folder / "INVENTORY.csv").open(encoding="utf-8") as file:
        entries = list(csv.DictReader(file))
    for entry in entries:
        rows, is_judged = _longest(folder / entry["file"], entry["run_hint"])
        group = held_out if is_held_out(entry["repo"]) else built
        group.add(entry, rows, is_judged=is_judged)
    return f"{_HEAD}{built.line()}{held_out.line()}\n{HELD_OUT}\n"


def _longest(path: Path, hint: str) -> tuple[list[SignalValues], bool]:
    """The run that is meant, and whether it could be judged."""
    found: list[tuple[list[SignalValues], bool]] = [([], False)]
    try:
        logs = open_logs(path)
    except UnreadableLogError:
        logs = []
    for log in logs:
        rows = SignalRows(log.rows(), lambda log=log: log.framework)  # type: ignore[misc]
        signals = [(step, dict(values)) for step, values in rows]
        signals = list(_attempts(signals))[int(hint[3:]) - 1] if hint else signals
        replay(signals, coverage=rows.coverage)
        found.append((signals, not rows.coverage.why_not_judged))
    return max(found, key=lambda item: len(item[0]))


def _attempts(rows: list[SignalValues]) -> Iterator[list[SignalValues]]:
    """Parts of a file that begin where the step falls back."""
    starts = [i + 1 for i, (a, b) in enumerate(pairwise(rows)) if b[0] < a[0]]
    for begin, end in pairwise([0, *starts, len(rows)]):
        yield rows[begin:end]


if __name__ == "__main__":
    print(table(), end="")
