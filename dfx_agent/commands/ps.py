"""Runs and ranks of this machine as a table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time

from rich.console import Console
from rich.table import Table

from dfx_agent.agent import config as configuration
from dfx_agent.agent.agent import Agent
from dfx_agent.snapshot import RankRow, RunRow, Snapshot

HELP = "list runs and ranks that are observed on this machine"
EXAMPLE = "dfx-agent ps --json"

# the backlog, and its time in the next reading, take up to seconds; then two that say what is now
_NUM_READINGS = 4
_BETWEEN_READINGS_SECONDS = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON")


def execute(args: argparse.Namespace) -> int:
    """Reads the segments itself: no agent needs to run."""
    config = configuration.load({"directory": args.directory}, os.environ, None)
    agent = Agent(config, reap=False)
    for number in range(_NUM_READINGS):
        time.sleep(_BETWEEN_READINGS_SECONDS if number else 0.0)
        agent.poll()
    snapshot = agent.snapshot()
    agent.stop()
    if args.json:
        print(json.dumps(dataclasses.asdict(snapshot)))
    else:
        _print_table(snapshot, config.directory)
    return 0


def _print_table(snapshot: Snapshot, directory: str) -> None:
    console = Console(markup=False)  # names are not ours: "[bold]" stays as it is
    for problem in snapshot.agent.problems:
        console.print(f"refused: {problem.message}", highlight=False)
    if not snapshot.runs:
        console.print(f"no observed process in {directory}; start one: dfx-agent run -- CMD ...")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("RUN", "ROLE", "RANK", "PID", "STATE", "STEP", "NOW", "FOR", "LOST"):
        right = heading in {"RANK", "PID", "STEP", "FOR", "LOST"}
        table.add_column(heading, justify="right" if right else "left")
    for run in snapshot.runs:
        for rank in run.ranks:
            table.add_row(*_cells(run, rank))
    console.print(table)


def _cells(run: RunRow, rank: RankRow) -> tuple[str, ...]:
    now = rank.inflight[-1] if rank.inflight else None
    step = "-" if rank.step is None else str(rank.step)
    name = f"{now.kind} {now.name}" if now else "-"
    elapsed = f"{now.elapsed_seconds:.1f} s" if now else "-"
    state = f"{rank.pid}", rank.state, step, name, elapsed, f"{rank.num_lost_records}"
    return (run.run, rank.role, rank.rank, *state)
