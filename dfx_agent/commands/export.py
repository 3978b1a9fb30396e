"""Writes the latest steps of a run to a file for an external trace viewer."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dfx_agent import __version__
from dfx_agent.agent import config as configuration
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.base.errors import DfxError, UsageError
from dfx_agent.commands import add_observing_arguments
from dfx_agent.commands.ps.agent_client import AskedAgent, NoAnswerError, named, of_folder, token_in
from dfx_agent.exporters.perfetto import TraceContext, trace
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import TimelineRow
from dfx_agent.wire import SegmentError

HELP = "write the latest steps of a run as a trace for Perfetto"
EXAMPLE = """dfx-agent export trace.json.gz --run nightly --steps 20

Open it at https://ui.perfetto.dev, which reads it in the browser. An agent stores
the timeline of at most 64 steps per rank; without an agent the segments are read."""

_Observed = tuple[str, tuple[TimelineRow, ...], TraceContext]

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


def _observed(args: argparse.Namespace) -> _Observed:
    config = configuration.load({"directory": args.directory}, os.environ, None)
    token = token_in(args.token_file)
    agent = named(args.url, token) if args.url else of_folder(config, token)
    if agent is not None:
        try:
            return _asked(agent, args)
        except NoAnswerError as error:
            if args.url:
                raise UsageError(f"no timeline: {error}") from None
            if not agent.is_guess:
                print(f"dfx-agent: {error}; the segments are read", file=sys.stderr)
    return _read(config, args)


def _asked(agent: AskedAgent, args: argparse.Namespace) -> _Observed:
    snapshot = agent.snapshot()
    if snapshot is None:
        raise NoAnswerError(f"{agent.url} follows another folder")
    run = _chosen([row.run for row in snapshot.runs], args)
    rows = agent.timeline(run, args.steps)
    if snapshot.agent.nodes:
        for node in (agent.snapshot() or snapshot).agent.nodes:
            if node.timeline_problem:
                print(f"dfx-agent: without {node.node}: {node.timeline_problem}", file=sys.stderr)
    row = next((row for row in snapshot.runs if row.run == run), None)
    return run, rows, TraceContext(row, agent.signals(run, _CURVE_STEPS))


def _read(config: Config, args: argparse.Namespace) -> _Observed:
    try:
        agent = Agent(config, reap=False)
    except SegmentError as error:
        raise UsageError(str(error)) from None
    end = time.monotonic() + _READ_SECONDS
    while time.monotonic() < end:
        agent.poll()
        time.sleep(config.poll_seconds)
    found = {row.run: row for row in agent.snapshot().runs}
    run = _chosen(list(found), args)
    rows = agent.timeline(run, args.steps)
    context = TraceContext(found[run], agent.signal_history(run, _CURVE_STEPS))
    agent.stop()
    return run, rows, context


def _chosen(runs: Sequence[str], args: argparse.Namespace) -> str:
    if args.run is not None and args.run in runs:
        return str(args.run)
    names = ", ".join(runs) or "none"
    if args.run is not None:
        raise UsageError(f"no run named {args.run}: there are: {names}")
    if not runs:
        raise DfxError(
            "no observed process: name another folder with --dir, or an agent with --url"
        )
    if len(runs) > 1:
        raise UsageError(f"several runs: choose one with --run: {names}")
    return runs[0]
