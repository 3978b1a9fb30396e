"""Rows per second and memory of the log readers (107 columns) and of a whole backtest (20 keys)."""

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
from dfx_agent.node.logs.reader import open_logs
begin = time.process_time()
num_rows = sum(1 for log in open_logs(sys.argv[1]) for _ in log.rows())
seconds = time.process_time() - begin
print(num_rows, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
# the verb as a user starts it, with the start of the interpreter
_BACKTEST = """
import contextlib, io, json, resource, sys, time
from dfx_agent.commands import main
said = io.StringIO()
with contextlib.redirect_stdout(said):
    main(["backtest", sys.argv[1], "--json"])
num_rows = json.loads(said.getvalue())["summary"]["num_rows"]
print(num_rows, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
NUM_OTHER_KEYS = 11


def measure(*, quick: bool) -> list[Result]:
    num_rows, num_rounds = (2_000, 2) if quick else (100_000, 3)
    results = []
    with tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        for path in _written(Path(folder), num_rows):
            seen = [_read(_READ, path, num_rows) for _ in range(num_rounds)]
            note = f"{_size_mib(path):,.0f} MiB, {NUM_COLUMNS} columns"
            results += _results(f"log reader, {path.suffix[1:]}", seen, 100, note)
            path.unlink()
        num_rows = 2_000 if quick else 60_000
        path = _training_log(Path(folder), num_rows)
        seen = [_read(_BACKTEST, path, num_rows) for _ in range(num_rounds)]
        note = f"{_size_mib(path):,.0f} MiB, 20 keys, 8 signals"
        results += _results("backtest, jsonl", seen, 60, note)
    return results


def _results(
    what: str, seen: list[tuple[float, float]], most_mib: float, note: str
) -> list[Result]:
    rates, peaks = [rate for rate, _ in seen], [peak for _, peak in seen]
    return [
        of_samples(
            f"{what}: rows per second of processor time",
            rates,
            "rows/s",
            bar=Bar(1e4, at_least=True),
            note=note,
        ),
        of_samples(f"{what}: peak memory", peaks, "MiB", bar=Bar(most_mib), note=note),
    ]


def _size_mib(path: Path) -> float:
    return path.stat().st_size / 2**20


def _training_log(folder: Path, num_rows: int) -> Path:
    """A healthy run of verl: a step, eight signals and eleven times."""
    rng = random.Random(7)
    path = folder / "run.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for step in range(num_rows):
            row = {
                "step": step,
                "actor/ppo_kl": abs(rng.gauss(0.01, 0.002)),
                "actor/grad_norm": rng.lognormvariate(0, 0.3),
                "actor/entropy": rng.gauss(0.5, 0.03),
                "critic/score/mean": rng.gauss(0.5, 0.05),
                "response_length/mean": rng.gauss(300, 15),
                "response_length/clip_ratio": max(0.0, rng.gauss(0.05, 0.01)),
                "actor/pg_loss": rng.gauss(0.1, 0.02),
                "actor/pg_clipfrac": abs(rng.gauss(0.02, 0.004)),
                **{f"timing_s/part{i}": rng.gauss(1, 0.1) for i in range(NUM_OTHER_KEYS)},
            }
            file.write(json.dumps(row) + "\n")
    return path


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


def _read(script: str, path: Path, num_rows: int) -> tuple[float, float]:
    """(rows per second of processor time, peak memory in MiB)."""
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen, seconds, peak_kib = done.stdout.split()
    if int(seen) != num_rows:
        raise RuntimeError(f"{path.name}: {seen} of {num_rows} rows")
    return num_rows / float(seconds), int(peak_kib) / 1024


if __name__ == "__main__":
    report(measure)
