"""Runs and ranks of this machine as a table."""

from __future__ import annotations

import argparse

from dfx_agent.base.errors import DfxError
from dfx_agent.commands import add_observing_arguments
from dfx_agent.commands.ps.observed import (
    Observed,
    UnusableFolderError,
    observe,
)
from dfx_agent.snapshot import RankRow, RunRow, Snapshot
from dfx_agent.snapshot.document import Document

HELP = "list runs and ranks that are observed on this machine, and the state of each run"
EXAMPLE = "dfx-agent ps --json"

# the backlog, and its time in the next reading, take up to seconds; then two that say what is now
_READ_SECONDS = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_observing_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON")


def execute(args: argparse.Namespace) -> int:
    """Asks the agent that follows the folder, which has seen more; else reads the segments."""
    try:
        seen = observe(args, _READ_SECONDS, lambda _: False)
    except UnusableFolderError as error:
        raise DfxError(str(error)) from None
    if args.json:
        print(Document[Snapshot](Snapshot).dumped(seen.snapshot).decode())
    else:
        _print_table(seen)
    return 0


def _print_table(seen: Observed) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)  # names are not ours: "[bold]" stays as it is
    for problem in seen.snapshot.agent.problems:
        console.print(problem.line, highlight=False)
    if not seen.runs:
        for ended in seen.finished:
            state, reason = ended.standing.state, ended.standing.reason
            console.print(f"{ended.run}: ended, {state}: {reason}", highlight=False)
        console.print(f"no observed process {seen.place}; start one: dfx-agent run -- CMD ...")
        return
    table = Table(box=None, pad_edge=False)
    has_nodes = len({rank.node for run in seen.runs for rank in run.ranks}) > 1
    node = ("NODE",) if has_nodes else ()
    for heading in ("RUN", "ROLE", "RANK", *node, "PID", "STATE", "STEP", "NOW", "FOR", "LOST"):
        right = heading in {"RANK", "PID", "STEP", "FOR", "LOST"}
        table.add_column(heading, justify="right" if right else "left")
    for run in seen.runs:
        for rank in run.ranks:
            table.add_row(*_cells(run, rank, has_nodes=has_nodes))
    if table.rows:
        console.print(table)
    for run in seen.runs:
        for line in _standing_lines(run):
            console.print(line, highlight=False)


def _standing_lines(run: RunRow) -> list[str]:
    """The state of the run; each incident in the words that the page and the pager use."""
    lines = [f"{incident.state}: {incident.sentence}" for incident in run.incidents]
    if all(incident.state == "noted" for incident in run.incidents):
        lines = [f"{run.standing.state}: {run.standing.reason}", *lines]
    return [f"{run.run}: {line}" for line in (run.part, run.step_origin, *lines) if line]


def _cells(run: RunRow, rank: RankRow, *, has_nodes: bool) -> tuple[str, ...]:
    now = rank.inflight[-1] if rank.inflight else None
    step = "-" if rank.step is None else str(rank.step)
    name = f"{now.kind} {now.name}" if now else "-"
    elapsed = f"{now.elapsed_seconds:.1f} s" if now else "-"
    is_starting = rank.outside is not None and rank.outside.is_starting
    how = "suspended" if rank.is_suspended else "starting" if is_starting else rank.state
    state = f"{rank.pid}", how, step, name, elapsed, f"{rank.num_lost_records}"
    node = (rank.node,) if has_nodes else ()
    return (run.run, rank.role, rank.rank, *node, *state)
