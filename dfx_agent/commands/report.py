"""Writes a self-contained page about one run, or about a hang or crash stored as evidence."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dfx_agent.base.errors import DfxError, UsageError
from dfx_agent.commands import add_observing_arguments
from dfx_agent.commands.ps.agent_client import NoAnswerError, asked_agent, settings_of
from dfx_agent.commands.ps.observed import Observed, observe
from dfx_agent.exporters.evidence_page import of_incident, of_run
from dfx_agent.snapshot import IncidentEvidence, SignalHistory, TimelineRow
from dfx_agent.snapshot.document import Document, reason

HELP = "write one HTML file about a run, or about a hang or crash stored as evidence"
EXAMPLE = """dfx-agent report run.html --run nightly
  dfx-agent report hang.html --evidence DIR/nightly-20261121T101500-hang.json

The page is self-contained and needs no network. Evidence is stored in DIR/evidence."""

_READ_SECONDS = 1.0
_CURVE_STEPS, _TIMELINE_STEPS = 256, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.html", help="file to write")
    parser.add_argument("--evidence", metavar="FILE", help="evidence of a hang or a crash")
    add_observing_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """0 when the file was written."""
    page = _of_evidence(args.evidence) if args.evidence else _of_now(args)
    try:
        Path(args.file).write_text(page, encoding="utf-8")
    except OSError as error:
        raise DfxError(f"cannot write {args.file}: {error.strerror}") from None
    print(f"dfx-agent: wrote {args.file}")
    return 0


def _of_evidence(file: str) -> str:
    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    try:
        return of_incident(Document[IncidentEvidence](IncidentEvidence).read(text))
    except (ValueError, OverflowError) as error:  # a time that no clock shows
        raise UsageError(
            f"{file} is not an evidence file of this version: {reason(error)}"
        ) from None


def _of_now(args: argparse.Namespace) -> str:
    """Of the run that was named, or the only one."""
    seen = observe(args, _READ_SECONDS, lambda _: False)
    run, snapshot = seen.only_run(), seen.snapshot
    history, timeline = _past_of(args, seen, run.run)
    return of_run(run, snapshot.agent, snapshot.time_seconds, history, timeline)


def _past_of(
    args: argparse.Namespace, seen: Observed, run: str
) -> tuple[SignalHistory | None, tuple[TimelineRow, ...]]:
    """Curves and the latest steps, of the agent that was asked; segments were read too briefly."""
    if seen.source == "segments":
        return None, ()
    agent = asked_agent(args, settings_of(args))
    if agent is None:  # it has ended since
        return None, ()
    try:
        return agent.signals(run, _CURVE_STEPS), agent.timeline(run, _TIMELINE_STEPS)
    except NoAnswerError as error:
        print(f"dfx-agent: the report has no curves: {error}", file=sys.stderr)
        return None, ()
