"""One measured number as results.json and the table show it."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.estimates import median, quantile

HERE = Path(__file__).resolve().parent
_HEADINGS = ("NUMBER", "VALUE", "SPREAD", "BASELINE", "RATIO", "N", "BAR", "")


@dataclass(frozen=True)
class Baseline:
    """What the number is compared with, measured interleaved with it, in the same unit."""

    name: str
    value: float


@dataclass(frozen=True)
class Bar:
    """What a number has to reach, in the unit of the number.

    ``bound`` is the number that must keep to it where that is not the value itself, for example
    the upper end of an interval.
    """

    limit: float
    at_least: bool = False
    bound: float | None = None

    def __str__(self) -> str:
        what = "" if self.bound is None else "upper bound "
        return f"{what}{'>=' if self.at_least else '<='} {self.limit:g}"

    def is_met(self, value: float) -> bool:
        value = value if self.bound is None else self.bound
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Result:
    """One row; ``spread`` is {"p10", "p90"} of samples or {"low", "high"} of a 95 % interval."""

    name: str
    value: float
    unit: str
    n: int
    spread: dict[str, float]
    baseline: Baseline | None = None
    bar: Bar | None = None
    note: str = ""

    def as_row(self, machine: dict[str, Any]) -> dict[str, Any]:
        """For results.json. ``ratio`` is value / baseline: below 1 is good for a cost."""
        base = self.baseline
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "baseline": base and dataclasses.asdict(base),
            "ratio": self.value / base.value if base and base.value else None,
            "n": self.n,
            **self.spread,
            "bar": self.bar and str(self.bar),
            "met": self.bar and self.bar.is_met(self.value),
            "note": self.note,
            "machine": machine,
        }


def of_samples(
    name: str,
    samples: Sequence[float],
    unit: str,
    *,
    q: float = 0.5,
    baseline: Baseline | None = None,
    bar: Bar | None = None,
    note: str = "",
) -> Result:
    """The ``q`` quantile of samples, with their p10 and p90."""
    spread = {"p10": quantile(samples, 0.1), "p90": quantile(samples, 0.9)}
    value = quantile(samples, q)
    return Result(name, value, unit, len(samples), spread, baseline, bar, note)


def median_of(name: str, samples: Sequence[float]) -> Baseline:
    return Baseline(name, median(samples))


def machine() -> dict[str, Any]:
    """Where and when this is measured; the load is that of the last minute, before the bench."""
    return {
        "cpu": _cpu_model(),
        "num_cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "kernel": platform.release(),
        **checkout(),
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def checkout() -> dict[str, Any]:
    """``commit`` and ``is_dirty`` of the tree that is measured; None where git cannot tell."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":!bench/results.json")
    return {"commit": commit, "is_dirty": None if changes is None else bool(changes)}


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=HERE, capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def report(measure: Callable[..., list[Result]]) -> None:
    """What a bench file does when it is run: ``measure(quick=...)``, then a table or ``--out``."""
    parser = argparse.ArgumentParser(description="one bench; see `python -m bench --help`")
    parser.add_argument("--quick", action="store_true", help="only see whether it works")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON instead of a table")
    options = parser.parse_args()
    where = machine()
    rows = [result.as_row(where) for result in measure(quick=options.quick)]
    if options.out:
        options.out.write_text(json.dumps(rows))
    else:
        print(table(rows))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of results.json for people, one line each."""
    lines = [_HEADINGS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    base, unit = row["baseline"], row["unit"]
    low, high = (row["p10"], row["p90"]) if "p10" in row else (row["low"], row["high"])
    verdict = {None: "", True: "met", False: "MISSED"}[row["met"]]
    return (
        row["name"],
        f"{_short(row['value'])} {unit}",
        f"{_short(low)} .. {_short(high)}",
        f"{base['name']}: {_short(base['value'])}" if base else "",
        "" if row["ratio"] is None else f"{row['ratio']:.3g}",
        str(row["n"]),
        row["bar"] or "",
        "  ".join(filter(None, (verdict, row["note"]))),
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
