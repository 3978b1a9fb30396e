"""Compares two stored runs: is one slower, by how much, in which stage, and what differs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from dfx_agent.base.errors import UsageError

if TYPE_CHECKING:
    from dfx_agent.commands.compare.comparison import Comparison, RunData

HELP = "compare two stored runs: which is slower, in which stage, and what differs"
EXAMPLE = """dfx-agent compare nightly-20261127T200000 nightly-20261128T200000
  dfx-agent compare base.sqlite new.sqlite --fail-over 5%

A and B are names, ids or files of `dfx-agent history`. Exit code 1: B is slower than --fail-over
allows; 2: the runs cannot be compared, or have too few steps."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dfx_agent.commands.history.chosen import add_history_arguments

    parser.add_argument("a", metavar="A", help="the run to compare with")
    parser.add_argument("b", metavar="B", help="the run that may be slower")
    parser.add_argument("--role", default="", metavar="ROLE", help="role whose steps count")
    parser.add_argument(
        "--fail-over", metavar="PERCENT", help="exit code 1 if B is slower by more, as in 5%%"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_history_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """0 compared, 1 slower than allowed, 2 not comparable."""
    from dfx_agent.commands.compare.comparison import Comparison
    from dfx_agent.commands.compare.comparison_text import sentence, text_lines
    from dfx_agent.commands.history.chosen import chosen_path
    from dfx_agent.commands.history.history_text import width_of_output
    from dfx_agent.snapshot.document import Document

    limit = _limit(args.fail_over)
    found = compare_files(chosen_path(args.a, args), chosen_path(args.b, args), args.role)
    if args.json:
        print(Document[Comparison](Comparison).dumped(found, indent=2).decode())
    else:
        print("\n".join(text_lines(found, width_of_output())))
    if found.problem:
        return 2
    if limit is not None and found.is_slower_by(limit):
        print(f"dfx-agent: {sentence(found)}", file=sys.stderr)
        return 1
    return 0


def compare_files(a: str, b: str, role: str = "") -> Comparison:
    """Compare two files of the history. HistoryFileError if one cannot be read."""
    from dfx_agent.commands.compare.comparison import compare

    return compare(_read(a), _read(b), role)


def _read(path: str) -> RunData:
    from dfx_agent.commands.compare.comparison import RunData
    from dfx_agent.exporters.history.stored_run import facts_of, load, steps_of

    return RunData(load(path), steps_of(path), facts_of(path))


def _limit(text: str | None) -> float | None:
    """0.05 for "5%" and for "5". UsageError for other text."""
    if text is None:
        return None
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 1e6:
        raise UsageError(f"--fail-over {text}: write a percentage, as in 5%")
    return percent / 100
