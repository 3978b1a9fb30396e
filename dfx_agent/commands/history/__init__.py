"""Lists stored runs, or says what happened in one of them and how it ended."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dfx_agent.exporters.history.stored_run import StoredRun

HELP = "list finished runs, or show one: its incidents and how it ended"
EXAMPLE = """dfx-agent history
  dfx-agent history nightly

RUN is a name (its latest run), an id of the list, or a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dfx_agent.commands.history.chosen import add_history_arguments

    parser.add_argument("run", nargs="?", metavar="RUN", help="the run to show")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_history_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """0 when it was shown; 1 when a file of the list cannot be read."""
    from dfx_agent.commands.history.chosen import chosen_path, directory_in
    from dfx_agent.exporters.history.stored_run import load, runs_in

    if args.run is not None:
        return _print([load(chosen_path(args.run, args))], args, is_one=True)
    directory = directory_in(args)
    runs, problems = runs_in(directory)
    if not runs and not args.json:
        print(f"dfx-agent: no stored run in {directory}", file=sys.stderr)
    else:
        _print(runs, args, is_one=False)
    for problem in problems:
        print(f"dfx-agent: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _print(runs: list[StoredRun], args: argparse.Namespace, *, is_one: bool) -> int:
    from dfx_agent.commands.history.history_text import list_lines, run_lines
    from dfx_agent.exporters.history.stored_run import StoredRun
    from dfx_agent.snapshot.document import Document

    now = time.time()
    if args.json and is_one:
        print(Document[StoredRun](StoredRun).dumped(runs[0], indent=2).decode())
    elif args.json:
        rows = Document[tuple[StoredRun, ...]](tuple[StoredRun, ...])
        print(rows.dumped(tuple(runs), indent=2).decode())
    else:
        print("\n".join(run_lines(runs[0], now) if is_one else list_lines(runs, now)))
    return 0
