"""Runs and ranks of this machine as a table."""

from __future__ import annotations

import argparse
from collections import Counter

from dfx_agent.base.errors import DfxError
from dfx_agent.commands import add_observing_arguments
from dfx_agent.commands.ps.observed import (
    Observed,
    UnusableFolderError,
    observe,
)
from dfx_agent.snapshot import RankRow, RunRow, Snapshot
from dfx_agent.snapshot.banner import blamed_ranks
from dfx_agent.snapshot.document import Document

HELP = "list runs and ranks that are observed on this machine, and the state of each run"
EXAMPLE = "dfx-agent ps --json"

# the backlog, and its time in the next reading, take up to seconds; then two that say what is now
_READ_SECONDS = 0.3
_MAX_ROWS = 20  # a screen, with the lines on what is wrong
_WORST = ("found", "warning", "insufficient evidence", "clear")
_STYLES = {
    "found": "bold red", "warning": "yellow", "clear": "green", "bad": "bold red", "warn": "yellow",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_observing_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON")
    parser.add_argument("--verbose", action="store_true", help="all ranks of a large job")


def execute(args: argparse.Namespace) -> int:
    """Asks the agent that follows the folder, which has seen more; else reads the segments."""
    try:
        seen = observe(args, _READ_SECONDS, lambda _: False)
    except UnusableFolderError as error:
        raise DfxError(str(error)) from None
    if args.json:
        print(Document[Snapshot](Snapshot).dumped(seen.snapshot).decode())
    else:
        _print_table(seen, is_verbose=args.verbose)
    return 0


def _print_table(seen: Observed, *, is_verbose: bool) -> None:
    """What is wrong, then the ranks, worst first; without ``is_verbose`` about one screen."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False)  # names are not ours: "[bold]" stays as it is
    for problem in seen.snapshot.agent.problems:
        console.print(problem.line, highlight=False)
    if not seen.runs:
        for ended in seen.finished:
            state, reason = ended.standing.state, ended.standing.reason
            console.print(f"{ended.run}: ended, {state}: {reason}", highlight=False)
        console.print(f"no observed process {seen.place}; start one: dfx-agent run -- CMD ...")
        return
    for run in sorted(seen.runs, key=lambda run: _WORST.index(run.standing.state)):
        for level, line in _standing_lines(run):
            console.print(Text(line, _STYLES.get(level, "")))
    table = Table(box=None, pad_edge=False)
    has_nodes = len({rank.node for run in seen.runs for rank in run.ranks}) > 1
    node = ("NODE",) if has_nodes else ()
    for heading in ("RUN", "ROLE", "RANK", *node, "PID", "STATE", "STEP", "NOW", "FOR", "LOST"):
        right = heading in {"RANK", "PID", "STEP", "FOR", "LOST"}
        table.add_column(heading, justify="right" if right else "left")
    rows = _worst_first(seen)
    shown = rows if is_verbose or len(rows) <= _MAX_ROWS else rows[: _MAX_ROWS - 1]
    for level, run, rank in shown:
        table.add_row(*_cells(run, rank, has_nodes=has_nodes), style=_STYLES.get(level, ""))
    if table.rows:
        console.print(table)
    if len(shown) < len(rows):
        states = Counter(rank.state for _, _, rank in rows[len(shown) :])
        words = ", ".join(f"{number} {state}" for state, number in states.most_common())
        console.print(f"and {len(rows) - len(shown):,} more ranks ({words}): see --verbose")


def _worst_first(seen: Observed) -> list[tuple[str, RunRow, RankRow]]:
    """(level, run, rank): blamed ranks, dead ranks, then all others in their order."""
    rows: list[tuple[str, RunRow, RankRow]] = []
    for run in seen.runs:
        blamed = blamed_ranks(run)
        order = list(blamed)
        guilty = [rank for rank in run.ranks if (rank.role, rank.rank) in blamed]
        guilty.sort(key=lambda rank: order.index((rank.role, rank.rank)))
        rest = [rank for rank in run.ranks if (rank.role, rank.rank) not in blamed]
        rows += [(blamed[rank.role, rank.rank], run, rank) for rank in guilty]
        rows += [("bad" if rank.state == "died" else "", run, rank) for rank in rest]
    return sorted(rows, key=lambda row: ("bad", "warn", "").index(row[0]))


def _standing_lines(run: RunRow) -> list[tuple[str, str]]:
    """(state, line): the run's state; each incident in the words that page and pager use."""
    lines: list[tuple[str, str]]
    lines = [(row.state, f"{row.state}: {row.sentence}") for row in run.incidents]
    if all(incident.state == "noted" for incident in run.incidents):
        state, reason = run.standing.state, run.standing.reason
        lines = [(state, f"{state}: {reason}"), *lines]
    about = [("", run.part), ("", run.step_origin)]
    return [(state, f"{run.run}: {line}") for state, line in (*about, *lines) if line]


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
