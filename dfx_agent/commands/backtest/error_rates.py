"""Computes error rates of alerts from labels of runs, for ``backtest DIR --summary``.

Labels are a CSV file with these columns: ``path`` or ``name`` (of the file, without endings),
``kind`` or ``verdict`` (healthy, collapse, ambiguous; bad means collapse), ``onset_row`` (row of
the collapse from 0) and, optional, ``sample``: "in" for runs on which a parameter was chosen.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dfx_agent.base.errors import UsageError
from dfx_agent.commands.backtest.episodes import Episode
from dfx_agent.commands.backtest.replay import Report

NAMES = ("LABELS.csv", "INVENTORY.csv")
# tolerance of an onset, which people mark by eye
EARLY_ROWS, MAX_DELAY_ROWS = 5, 40

_KINDS = {"bad": "collapse", "good": "healthy"}
_NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Label:
    """The label of one run."""

    kind: str
    """healthy, collapse or ambiguous"""
    onset_row: int | None
    """Row of the collapse, from 0."""
    sample: str


@dataclass(frozen=True)
class Labels:
    """Labels by path or name of the log."""

    path: Path
    by_key: dict[str, Label]

    def find(self, report: Report) -> Label | None:
        """The label of a run, by the last parts of its path or by its name."""
        path = Path(report.file)
        stem = path.name.partition(".")[0]
        ends = ["/".join(path.parts[-n:]) for n in range(len(path.parts), 0, -1)]
        keys = [f"{end}#{report.name}" for end in ends] if report.name else []
        return next((self.by_key[key] for key in (*keys, *ends, stem) if key in self.by_key), None)


@dataclass
class Rates:
    """Counts of one group of runs. False alerts are those outside a collapse."""

    name: str
    num_runs: int = 0
    num_rows: int = 0
    num_healthy_rows: int = 0
    num_collapses: int = 0
    num_false_pages: int = 0
    num_false_warnings: int = 0
    delays: list[int] | None = None

    @property
    def num_found(self) -> int:
        return len(self.delays or [])


def labels_of(places: Sequence[str], named: str | None) -> Labels:
    """Read the labels. Raises UsageError if there is no valid file."""
    path = Path(named) if named else _find_labels(places)
    if path is None:
        raise UsageError(f"--summary needs labels: {' or '.join(NAMES)} in the folder, or --labels")
    found: dict[str, Label] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                label = _label(row, f"{path}, line {number}")
                keys = (row.get("path"), row.get("file"), row.get("name"))
                found.update((key, label) for key in keys if key)
    except (OSError, UnicodeError, csv.Error) as error:
        raise UsageError(f"cannot read the labels {path}: {error}") from None
    return Labels(path, found)


def _find_labels(places: Sequence[str]) -> Path | None:
    folders = [Path(place) for place in places]
    near = [
        near / name
        for folder in folders
        for near in (folder, folder.resolve().parent)
        for name in NAMES
    ]
    return next(filter(os.path.isfile, near), None)


def _label(row: dict[str, Any], where: str) -> Label:
    given = (row.get("kind") or row.get("verdict") or "").strip().lower()
    kind, onset = _KINDS.get(given, given), (row.get("onset_row") or "").strip()
    if kind not in {"healthy", "collapse", "ambiguous"}:
        raise UsageError(f"{where}: kind is {given!r}, not healthy, collapse or ambiguous")
    if kind == "collapse" and not onset.isdecimal():
        raise UsageError(f"{where}: a collapse needs its onset_row, counted from 0")
    return Label(kind, int(onset) if kind == "collapse" else None, row.get("sample") or "not said")


def rates(reports: Iterable[Report], labels: Labels) -> list[Rates]:
    """Rates of all runs, then by sample, then by framework, without runs that were not judged."""
    labelled = [
        (report, label) for report in reports if report.is_judged and (label := labels.find(report))
    ]
    samples = sorted({label.sample for _, label in labelled})
    names = sorted({report.framework for report, _ in labelled})
    groups: list[tuple[str, Callable[[Report, Label], bool]]] = [("all", lambda _r, _l: True)]
    groups += [(f"sample: {s}", lambda _r, label, s=s: label.sample == s) for s in samples]  # type: ignore[misc]
    groups += [(n, lambda report, _l, n=n: report.framework == n) for n in names]  # type: ignore[misc]
    return [
        _rates(name or "unknown", [pair for pair in labelled if is_in(*pair)])
        for name, is_in in groups
    ]


def _rates(name: str, labelled: list[tuple[Report, Label]]) -> Rates:
    found = Rates(name, delays=[])
    for report, label in labelled:
        found.num_runs += 1
        found.num_rows += report.num_rows
        if label.kind == "ambiguous":
            continue
        healthy_rows = _healthy_rows(report, label)
        found.num_healthy_rows += healthy_rows
        false = [episode.severity for episode in report.alerts if episode.row < healthy_rows]
        found.num_false_pages += false.count("critical")
        found.num_false_warnings += false.count("warning")
        if label.onset_row is not None:
            found.num_collapses += 1
            found.delays += _delays(report.alerts, label.onset_row)  # type: ignore[operator]
    return found


def _healthy_rows(report: Report, label: Label) -> int:
    if label.onset_row is None:
        return report.num_rows
    return max(0, min(report.num_rows, label.onset_row - EARLY_ROWS))


def _delays(alerts: Sequence[Episode], onset_row: int) -> list[int]:
    """[rows from the onset to the first critical alert near it]; [] if there is none."""
    delays = [page.row - onset_row for page in alerts if page.severity == "critical"]
    return [max(0, delay) for delay in delays if -EARLY_ROWS <= delay <= MAX_DELAY_ROWS][:1]


def wilson(num_found: int, num: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927); (0, 1) if ``num`` is 0."""
    if not num:
        return 0.0, 1.0
    z2, share = _NORMAL_95**2, num_found / num
    middle = share + z2 / (2 * num)
    half = _NORMAL_95 * math.sqrt(share * (1 - share) / num + z2 / (4 * num * num))
    low, high = (middle - half) / (1 + z2 / num), (middle + half) / (1 + z2 / num)
    return max(0.0, low), min(1.0, high)


def poisson(count: int) -> tuple[float, float]:
    """Exact 95 % interval of the mean of a count (Garwood 1936)."""
    low = 0.0 if not count else _mean_at(count - 1, 0.975)
    return low, _mean_at(count, 0.025)


def _mean_at(count: int, share: float) -> float:
    """The mean at which so many or fewer have this probability."""
    low, high = 0.0, count + 10.0 * math.sqrt(count + 1.0) + 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, middle) > share else (low, middle)
    return low


def _at_most(count: int, mean: float) -> float:
    if not mean:
        return 1.0
    logs = (n * math.log(mean) - mean - math.lgamma(n + 1) for n in range(count + 1))
    return math.fsum(map(math.exp, logs))


def rates_as_json(reports: list[Report], labels: Labels) -> dict[str, Any]:
    unlabelled = [report.title for report in reports if labels.find(report) is None]
    return {
        "labels": str(labels.path),
        "unlabelled": unlabelled,
        "groups": [_group_as_json(group) for group in rates(reports, labels)],
    }


def _group_as_json(group: Rates) -> dict[str, Any]:
    num_rows = group.num_healthy_rows
    return {
        "group": group.name,
        "num_runs": group.num_runs,
        "num_rows": group.num_rows,
        "num_healthy_rows": num_rows,
        "num_collapses": group.num_collapses,
        "num_found": group.num_found,
        "recall_interval": wilson(group.num_found, group.num_collapses),
        "median_delay_rows": median(group.delays) if group.delays else None,
        "num_false_pages": group.num_false_pages,
        "false_pages_per_100_rows_interval": _per_100(poisson(group.num_false_pages), num_rows),
        "num_false_warnings": group.num_false_warnings,
        "false_warnings_per_100_rows_interval": _per_100(
            poisson(group.num_false_warnings), num_rows
        ),
    }


def _per_100(interval: tuple[float, float], num_rows: int) -> tuple[float, float] | None:
    return (100 * interval[0] / num_rows, 100 * interval[1] / num_rows) if num_rows else None


_HEAD = (
    "| runs | count | rows | healthy rows | collapses found | 95 % | median delay, rows "
    "| false pages per 100 rows | 95 % | false warnings per 100 rows | 95 % |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def markdown(reports: list[Report], labels: Labels) -> str:
    """The table of docs/reference/alerts.md, and below it what is in no row of it."""
    table = _HEAD + "".join(map(_line, rates(reports, labels)))
    return table + "".join(f"\n{line}\n" for line in _left_out(reports, labels))


def _line(group: Rates) -> str:
    low, high = wilson(group.num_found, group.num_collapses)
    recall = f"{low:.0%} to {high:.0%}" if group.num_collapses else ""
    delay = f"{median(group.delays):g}" if group.delays else ""
    cells = [
        group.name, f"{group.num_runs}", f"{group.num_rows:,}", f"{group.num_healthy_rows:,}",
        f"{group.num_found} of {group.num_collapses}", recall, delay,
        *_rate_cells(group.num_false_pages, group.num_healthy_rows),
        *_rate_cells(group.num_false_warnings, group.num_healthy_rows),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _rate_cells(count: int, num_rows: int) -> tuple[str, str]:
    interval = _per_100(poisson(count), num_rows)
    if interval is None:
        return "", ""
    return f"{100 * count / num_rows:.3g} ({count})", f"{interval[0]:.2g} to {interval[1]:.2g}"


def _left_out(reports: list[Report], labels: Labels) -> Iterator[str]:
    read = [report for report in reports if report.error is None]
    unlabelled = sum(labels.find(report) is None for report in read)
    not_judged = sum(not report.is_judged for report in read)
    if unlabelled:
        yield f"{unlabelled} runs have no label and are in no row."
    if not_judged:
        yield f"{not_judged} runs could not be judged and are in no row."
    if len(read) < len(reports):
        yield f"{len(reports) - len(read)} files could not be read."
