"""Rows per second and memory of the log readers over a file of 100,000 rows and 107 columns."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measurement import Bar, Result, of_samples, report

NUM_COLUMNS = 107
_SIGNALS = (
    "actor/ppo_kl", "actor/grad_norm", "actor/entropy", "critic/score/mean", "critic/score/max",
    "critic/score/min", "response_length/mean", "response_length/clip_ratio", "actor/pg_loss",
)  # fmt: skip
# a process of its own: its peak memory is that of the reading
_READ = """
import resource, sys, time
from dfx_agent.ingest.reader import open_logs
begin = time.process_time()
num_rows = sum(1 for log in open_logs(sys.argv[1]) for _ in log.rows())
seconds = time.process_time() - begin
print(num_rows, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure(*, quick: bool) -> list[Result]:
    num_rows, num_rounds = (2_000, 2) if quick else (100_000, 3)
    results = []
    with tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        for path in _written(Path(folder), num_rows):
            seen = [_read(path, num_rows) for _ in range(num_rounds)]
            results += _results(path, seen)
            path.unlink()
    return results


def _results(path: Path, seen: list[tuple[float, float]]) -> list[Result]:
    size_mib = path.stat().st_size / 2**20
    form, note = path.suffix[1:], f"{size_mib:,.0f} MiB, {NUM_COLUMNS} columns"
    rates, peaks = [rate for rate, _ in seen], [peak for _, peak in seen]
    return [
        of_samples(
            f"log reader, {form}: rows per second of processor time",
            rates,
            "rows/s",
            bar=Bar(1e4, at_least=True),
            note=note,
        ),
        of_samples(f"log reader, {form}: peak memory", peaks, "MiB", bar=Bar(100), note=note),
    ]


def _written(folder: Path, num_rows: int) -> list[Path]:
    rng = random.Random(1)
    keys = [*_SIGNALS, *(f"timing_s/part{i}" for i in range(NUM_COLUMNS - len(_SIGNALS)))]
    rows = [[rng.gauss(1, 0.1) for _ in keys] for _ in range(500)]
    table, lines = folder / "metrics.csv", folder / "metrics.jsonl"
    with table.open("w", encoding="utf-8") as file:
        file.write(",".join(("step", *keys)) + "\n")
        for i in range(num_rows):
            file.write(f"{i},{','.join(map(repr, rows[i % 500]))}\n")
    with lines.open("w", encoding="utf-8") as file:
        for i in range(num_rows):
            file.write(json.dumps({"step": i} | dict(zip(keys, rows[i % 500], strict=True))) + "\n")
    return [table, lines]


def _read(path: Path, num_rows: int) -> tuple[float, float]:
    """(rows per second of processor time, peak memory in MiB)."""
    command = [sys.executable, "-c", _READ, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen, seconds, peak_kib = done.stdout.split()
    if int(seen) != num_rows:
        raise RuntimeError(f"{path.name}: {seen} of {num_rows} rows")
    return num_rows / float(seconds), int(peak_kib) / 1024


if __name__ == "__main__":
    report(measure)
