"""Writes the latest steps of a run to a file for an external trace viewer."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

from dfx_agent import __version__
from dfx_agent.agent.config import Config
from dfx_agent.base.errors import DfxError, UsageError
from dfx_agent.commands import add_observing_arguments
from dfx_agent.commands.ps.agent_client import AskedAgent, NoAnswerError, asked_agent, settings_of
from dfx_agent.commands.ps.folder_reader import FolderReader
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.exporters.perfetto import TraceContext, trace
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import TimelineRow

HELP = "write the latest steps of a run as a trace for Perfetto"
EXAMPLE = """dfx-agent export trace.json.gz --run nightly --steps 20

Open it at https://ui.perfetto.dev, which reads it in the browser. An agent stores
the timeline of at most 64 steps per rank; without an agent the segments are read."""

_Found = tuple[str, tuple[TimelineRow, ...], TraceContext]

_MOST_STEPS, _CURVE_STEPS = 200, 256
_READ_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to write: .json, or .json.gz")
    parser.add_argument(
        "--perfetto", action="store_true", help="the format: a trace for Perfetto, the only one"
    )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="latest steps (20)")
    add_observing_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """0 when the file was written."""
    if not 1 <= args.steps <= _MOST_STEPS:
        raise UsageError(f"--steps {args.steps}: use 1 to {_MOST_STEPS}")
    run, rows, context = _observed(args)
    if not rows:
        raise DfxError(f"run {run} has no steps: nothing was written")
    data = json.dumps(trace(run, rows, __version__, context), allow_nan=False).encode()
    is_packed = args.file.endswith(".gz")
    try:
        Path(args.file).write_bytes(gzip.compress(data) if is_packed else data)
    except OSError as error:
        raise DfxError(f"cannot write {args.file}: {error.strerror}") from None
    ranks = labels_text(row.rank for row in rows)
    steps = sorted({row.step for row in rows if row.step is not None})
    which = f"steps {steps[0]} to {steps[-1]}" if steps else "no step yet"
    print(f"dfx-agent: wrote {args.file}: {which}, {ranks}, run {run}")
    return 0


def _observed(args: argparse.Namespace) -> _Found:
    config = settings_of(args)
    agent = asked_agent(args, config)
    if agent is not None:
        try:
            return _asked(agent, config, args)
        except NoAnswerError as error:
            if args.url:
                raise UsageError(f"no timeline: {error}") from None
            if not agent.is_guess:
                print(f"dfx-agent: {error}; the segments are read", file=sys.stderr)
    reader = FolderReader(config)
    seen = reader.look_for(_READ_SECONDS, lambda _: False)
    found = _found(seen, reader, args)
    reader.stop()
    return found


def _asked(agent: AskedAgent, config: Config, args: argparse.Namespace) -> _Found:
    snapshot = agent.snapshot()
    if snapshot is None:
        raise NoAnswerError(f"{agent.url} follows another folder")
    found = _found(Observed(agent.url, config.directory, snapshot), agent, args)
    if snapshot.agent.nodes:
        for node in (agent.snapshot() or snapshot).agent.nodes:
            if node.timeline_problem:
                print(f"dfx-agent: without {node.node}: {node.timeline_problem}", file=sys.stderr)
    return found


def _found(seen: Observed, source: AskedAgent | FolderReader, args: argparse.Namespace) -> _Found:
    row = seen.chosen(args.run).only_run()
    rows = source.timeline(row.run, args.steps)
    return row.run, rows, TraceContext(row, source.signals(row.run, _CURVE_STEPS))
