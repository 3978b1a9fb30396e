"""``python -m bench [NAME ...] [--quick] [--out FILE]``: run benches one after the other.

Each runs in a process of its own. A whole run writes bench/results.json, ``--update`` replaces the
rows of the benches that ran in it. A bar that is missed is said, not an error; a bench that fails
is one (exit code 1), and results.json stays as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measurement import table

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
BENCHES = (
    "record_cost",
    "span_cost",
    "reader_throughput",
    "log_readers",
    "interpreter_start",
    "page_latency",
    "page_stream",
    "scrape_time",
    "otlp_push",
    "facts_bytes",
    "agent_cost",
    "join_cost",
    "job_scale",
    "poll_cost",
    "guest_cost",
    "ledger_cost",
    "verdicts",
    "stragglers",
    "pipeline_stragglers",
    "divergence",
    "injections",
    "attach_soak",
    "attach_job",
    "visits",
    "training_hooks",
    "overhead",
)


def main() -> int:
    """Exit code: 0 all benches ran, 1 one failed, 2 wrong use, 130 interrupted."""
    options = _parse()
    rows: list[dict[str, Any]] = []
    failed = []
    for name in options.bench or BENCHES:
        begin = time.monotonic()
        found = _run(name, quick=options.quick)
        if found is None:
            failed.append(name)
        rows += found or []
        print(f"bench: {name}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    if rows:
        where = rows[0]["machine"]
        print(", ".join(f"{key} {value}" for key, value in where.items()), end="\n\n")
        print(table(rows))
    return _finish(rows, failed, options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure what the guest and the agent cost."
    )
    parser.add_argument("bench", nargs="*", help=f"all, or of: {', '.join(BENCHES)}")
    parser.add_argument(
        "--quick", action="store_true", help="only see whether it works; figures mean little"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the JSON goes (whole runs: results.json)"
    )
    parser.add_argument(
        "--update", action="store_true", help="replace the rows of these benches in results.json"
    )
    options = parser.parse_args()
    unknown = [name for name in options.bench if name not in BENCHES]
    if unknown:
        parser.error(f"no bench named {unknown[0]}; choose from {', '.join(BENCHES)}")
    return options


def _run(name: str, *, quick: bool) -> list[dict[str, Any]] | None:
    """Rows of one bench, in a fresh process with none of the caller's DFX_* but DFX_BENCH_*.

    None when it failed.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("DFX_") or key.startswith("DFX_BENCH_")
    }
    with tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, "-m", f"bench.{name}", "--out", str(out)]
        command += ["--quick"] if quick else []
        done = subprocess.run(command, cwd=HERE.parent, env=env, check=False)
        if done.returncode:
            return None
        rows: list[dict[str, Any]] = json.loads(out.read_text())
        return [{**row, "bench": name} for row in rows]


def _finish(rows: list[dict[str, Any]], failed: list[str], options: argparse.Namespace) -> int:
    is_whole = not options.bench and not options.quick
    out = options.out or (RESULTS if is_whole or options.update else None)
    if failed:
        print(f"bench: failed: {', '.join(failed)}; nothing is written", file=sys.stderr)
        return 1
    if options.update:
        rows = updated(json.loads(RESULTS.read_text()), rows)
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"\nwritten to {out}")
    missed = [row["name"] for row in rows if row["met"] is False]
    if missed:
        print(f"\nbars missed: {'; '.join(missed)}")
    return 0


def updated(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows`` in place of those of the same benches and names, in the order of the benches."""
    benches, names = {row["bench"] for row in rows}, {row["name"] for row in rows}
    others = [row for row in before if row.get("bench") not in benches and row["name"] not in names]
    return sorted(others + rows, key=lambda row: (*BENCHES, None).index(row.get("bench")))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
