"""Verdicts now, each with its evidence, or "insufficient evidence"."""

from __future__ import annotations

import argparse

from dfx_agent.commands import _asking
from dfx_agent.commands._observing import add_observing_arguments

HELP = "say what is wrong now: hang, crash, straggler, divergence, data, each with its evidence"
EXAMPLE = """dfx-agent diagnose --watch 60
  dfx-agent diagnose --json --run nightly

exit code by the state of the worst run: 0 nothing was found (clear, insufficient evidence, or a
warning), 1 something was found, 2 wrong use, no observed process, or the agent is blind: something
was not read or judged for three periods. Nothing is clear while an alert fires or a judge lacks
evidence. An agent that follows the folder is asked, since it has seen more; without one the
segments are read for 3 s. A hang shows 10 to 15 s after a rank stops taking part; a straggler
takes some steps: --watch looks longer, and ends as soon as something is found. Divergence needs the
baselines of 14 steps, which an agent keeps; data needs batches that cross two boundaries of the
ledger."""

_WATCH_SECONDS = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_observing_arguments(parser)
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="look this long, or until something is found"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")


def execute(args: argparse.Namespace) -> int:
    """1 when something was found."""
    answer = _asking.diagnosis(args) if args.watch is None else None
    if answer is not None:
        print(answer.text, end="" if answer.text.endswith("\n") else "\n")
        return answer.exit_code
    return _observe(args)


def _observe(args: argparse.Namespace) -> int:
    """The long way: with the whole package, from segments where no agent answers."""
    from dfx_agent.assembly import diagnosis
    from dfx_agent.assembly.observed import observe

    seconds = _WATCH_SECONDS if args.watch is None else args.watch
    seen = observe(args, seconds, diagnosis.finds_something, asks_again=args.watch is not None)
    if args.json:
        print(diagnosis.DOCUMENT.dumped(diagnosis.diagnosis(seen, args.run)).decode())
    else:
        print(diagnosis.text(seen, args.run), end="")
    return diagnosis.exit_code(seen, args.run)
