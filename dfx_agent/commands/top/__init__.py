"""A live view of the runs in a terminal: what is wrong, what to do, and each rank."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from dfx_agent.base.errors import UsageError
from dfx_agent.commands import add_observing_arguments

if TYPE_CHECKING:
    from dfx_agent.commands.ps.observed import Observed
    from dfx_agent.commands.top.poller import Watched

HELP = "watch a run in the terminal: what is wrong, what to do, a bar for each rank"
EXAMPLE = """dfx-agent top
  dfx-agent top --url http://hub:9931 --token-file ~/dfx-token
  dfx-agent top --once

keys: q quit, s sort, r reverse, / filter, arrows select, Enter the rank in full,
e evidence, Tab next run, ? help. NO_COLOR and TERM=dumb are respected. --once
prints one frame and has the exit code of `dfx-agent diagnose`."""

_READ_SECONDS = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_observing_arguments(parser)
    parser.add_argument("--once", action="store_true", help="print one frame and end")


def execute(args: argparse.Namespace) -> int:
    """Of ``--once``: 1 when something was found. Else 0, also after Ctrl-C."""
    from dfx_agent.commands.top.poller import watched

    watch = watched(args)
    if args.once or not sys.stdout.isatty():
        return _print_once(args, watch)
    return _watch(args, watch)


def _print_once(args: argparse.Namespace, watch: Watched) -> int:
    from dfx_agent.commands.diagnose import diagnosis_text
    from dfx_agent.commands.top.poller import Poller
    from dfx_agent.commands.top.screen import print_once
    from dfx_agent.commands.top.view import Choice

    seen = _first(watch, args.run)
    print_once(Poller(watch, seen).shown(), Choice(run=args.run or ""))
    return diagnosis_text.exit_code(seen, args.run)


def _watch(args: argparse.Namespace, watch: Watched) -> int:
    from dfx_agent.commands.top import screen
    from dfx_agent.commands.top.poller import Poller
    from dfx_agent.commands.top.view import Choice

    poller = Poller(watch, _first(watch, args.run))
    poller.start()
    screen.watch(poller, Choice(run=args.run or ""))
    return 0


def _first(watch: Watched, run: str | None) -> Observed:
    """UsageError when nobody answers, or when there is no such run: a name was mistyped."""
    from dfx_agent.commands.ps.agent_client import NoAnswerError

    try:
        seen = watch.look()
    except NoAnswerError as error:
        raise UsageError(f"no snapshot: {error}") from None
    return seen.chosen(run)
