"""Writes a self-contained page about one run, or about a hang or crash stored as evidence."""

from __future__ import annotations

import argparse
from pathlib import Path

from dfx_agent.base.errors import DfxError, UsageError
from dfx_agent.commands import add_observing_arguments
from dfx_agent.commands.ps.observed import observe
from dfx_agent.exporters.evidence_page import of_incident, of_run
from dfx_agent.snapshot import IncidentEvidence
from dfx_agent.snapshot.document import Document, reason

HELP = "write one HTML file about a run, or about a hang or crash stored as evidence"
EXAMPLE = """dfx-agent report run.html --run nightly
  dfx-agent report hang.html --evidence DIR/nightly-20261121T101500-hang.json

The page is self-contained and needs no network. Evidence is stored in DIR/evidence."""

_READ_SECONDS = 1.0


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
    if not seen.runs:
        raise DfxError(f"no observed process {seen.place}: give --evidence FILE, --dir or --url")
    if len(seen.runs) > 1:
        names = ", ".join(run.run for run in seen.runs)
        raise UsageError(f"several runs: choose one with --run: {names}")
    return of_run(seen.runs[0], seen.snapshot.agent, seen.snapshot.time_seconds)
