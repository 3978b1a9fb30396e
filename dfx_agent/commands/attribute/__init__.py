"""Run one step boundary by itself and say which of its phases hold the event loop."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import dfx_agent
from dfx_agent.base.errors import DfxError, UsageError
from dfx_agent.base.text import seconds_text
from dfx_agent.commands.attribute.child import RESULT, Outcome, Wanted
from dfx_agent.commands.attribute.costs import Attribution, attribution

HELP = "run the phases of a step boundary by themselves: how long each holds an event loop, and why"
EXAMPLE = """dfx-agent attribute boundary.py:finish_step --inputs step.json
  dfx-agent attribute boundary.py:finish_step --synthetic-traffic 200

FUNCTION, plain or async, is called in an event loop of a child process. Its phases are the
stages (dfx.stage) that it marks. Where it is a generator or gives pairs of a name and a function,
each function is one phase, called by itself. FILE is JSON: an object gives arguments by
name, anything else is the only argument. What the script prints goes to stderr."""

_LEAST_SHARE = 0.1  # of the time that the loop was held; who had less is not printed
_MOST_TASKS = 100_000
_RING_RECORDS = 1 << 20
_CHILD = "import sys; sys.path.append({root!r}); from {package}.child import main; main()"
_SUFFIXES_THAT_RUN_CODE = (".pkl", ".pickle", ".pt", ".pth", ".npy", ".npz", ".joblib")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="SCRIPT.py:FUNCTION", help="what to run")
    parser.add_argument("--inputs", metavar="FILE", help="its arguments, as JSON (none)")
    parser.add_argument(
        "--synthetic-traffic",
        type=int,
        default=0,
        metavar="N",
        help="N tasks in the same loop that want to be woken ten times a second, to see who waits",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def execute(args: argparse.Namespace) -> int:
    """1 when a phase failed or the script ended the process; what is known is printed then too."""
    script, _, function = args.target.rpartition(":")
    if not script or not function:
        raise UsageError(f"{args.target}: write SCRIPT.py:FUNCTION")
    if not os.path.isfile(script):
        raise UsageError(f"{script}: there is no such file")
    if not 0 <= args.synthetic_traffic <= _MOST_TASKS:
        raise UsageError(f"--synthetic-traffic: use 0 to {_MOST_TASKS}")
    if args.inputs:
        _check_inputs(args.inputs)
    with tempfile.TemporaryDirectory(prefix="dfx-attribute-") as folder:
        wanted = Wanted(script, function, args.inputs or "", args.synthetic_traffic, folder)
        outcome = _run(wanted)
        if outcome.is_wrong_use:
            raise UsageError(outcome.error)
        if not outcome.end_ns:
            raise DfxError(f"{script}: {outcome.error}")
        found = attribution(outcome, args.synthetic_traffic)
    if args.json:
        print(json.dumps(asdict(found)))
    else:
        _print(found)
    if found.error:
        raise DfxError(f"{args.target}: {found.error}")
    return 0


def _check_inputs(path: str) -> None:
    if path.endswith(_SUFFIXES_THAT_RUN_CODE):
        raise UsageError(f"{path}: only JSON is read; let the function load anything else itself")
    try:
        json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}") from None


def _run(wanted: Wanted) -> Outcome:
    """In a child process: the script may do there what it likes."""
    root = str(Path(dfx_agent.__file__).resolve().parents[1])
    command = [
        sys.executable,
        "-c",
        _CHILD.format(root=root, package=__name__),
        json.dumps(asdict(wanted)),
    ]
    own = {name: value for name, value in os.environ.items() if not name.startswith("DFX_")}
    env = {**own, "DFX_DIR": wanted.folder, "DFX_RING_RECORDS": str(_RING_RECORDS)}
    done = subprocess.run(command, env=env, stdout=sys.stderr, check=False)
    result = Path(wanted.folder, RESULT)
    if not result.exists():
        raise DfxError(f"{wanted.script}: {_ending(done.returncode)} before its phases were over")
    return Outcome(**json.loads(result.read_text()))


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _print(found: Attribution) -> None:
    from rich.console import Console
    from rich.table import Table

    idle = seconds_text(found.idle_lag_seconds)
    print(f"asked every 1 ms; while nothing ran the loop was late by {idle} at 99 %")
    if found.num_lost_records:
        print(f"{found.num_lost_records} records were lost: phases are missing")
    headings = ["PHASE", "TOOK", "LOOP HELD", "LONGEST"]
    if found.num_tasks:
        headings += ["LATE WAKES", "MEAN", "LATEST"]
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "PHASE" else "right", no_wrap=True)
    table.add_column("BY", overflow="fold")
    for cost in found.phases:
        late = [cost.seconds, cost.late_seconds, cost.longest_late_seconds]
        cells = [cost.name, *map(_duration_text, late)]
        if found.num_tasks:
            mean = cost.wake_delay_seconds / max(1, cost.num_late_wakes)
            cells += [
                f"{cost.num_late_wakes}",
                _duration_text(mean),
                _duration_text(cost.longest_wake_seconds),
            ]
        by = [held for held in cost.held_by if held.seconds >= _LEAST_SHARE * cost.late_seconds]
        table.add_row(
            *cells, "; ".join(f"{_duration_text(held.seconds)} {held.name}" for held in by)
        )
    Console(markup=False, highlight=False, width=_width()).print(table)
    if found.num_tasks:
        print(f"{found.num_tasks} tasks of synthetic traffic were woken {found.num_wakes} times")


def _width() -> int | None:
    """As wide as the terminal; a pipe or a file has no width."""
    return None if sys.stdout.isatty() else 200


def _duration_text(seconds: float) -> str:
    if not seconds:
        return "-"
    return f"{seconds:.3f} s" if seconds < 10 else seconds_text(seconds)
