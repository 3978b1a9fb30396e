"""A self-contained page about one run, or about one hang or crash that was kept as evidence."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from dfx_agent.assembly.observed import add_observing_arguments, observe
from dfx_agent.errors import DfxError, UsageError
from dfx_agent.reports.evidence_page import render

HELP = "write one HTML file about a run, or about a hang or crash that was kept as evidence"
EXAMPLE = """dfx-agent report run.html --run nightly
  dfx-agent report hang.html --evidence /dev/shm/dfx-1000/evidence/nightly-20261121T101500-hang.json

The file needs nothing beside it and no network. Evidence is kept in DIR/evidence."""

_READ_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.html", help="file to write")
    parser.add_argument("--evidence", metavar="FILE", help="evidence of a hang or a crash")
    add_observing_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """0 when the file was written."""
    document = _read_evidence(args.evidence) if args.evidence else _of_now(args)
    try:
        page = render(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{args.evidence or 'snapshot'} is not of this version: {error!r}"
        ) from None
    try:
        Path(args.file).write_text(page, encoding="utf-8")
    except OSError as error:
        raise DfxError(f"cannot write {args.file}: {error.strerror}") from None
    print(f"dfx-agent: wrote {args.file}")
    return 0


def _read_evidence(file: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{file} is not an evidence file: it is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != 1:
        raise UsageError(f"{file} is not an evidence file of this version")
    return document


def _of_now(args: argparse.Namespace) -> dict[str, Any]:
    """The run that was named, or the only one; as an evidence file without an incident."""
    seen = observe(args, _READ_SECONDS, lambda _: False)
    if not seen.runs:
        raise DfxError(f"no observed process in {seen.directory}: give --evidence FILE, or --dir")
    if len(seen.runs) > 1:
        names = ", ".join(run.run for run in seen.runs)
        raise UsageError(f"several runs: choose one with --run: {names}")
    return {
        "time_seconds": seen.snapshot.time_seconds,
        "node": seen.snapshot.agent.node,
        "agent_version": seen.snapshot.agent.version,
        "run": dataclasses.asdict(seen.runs[0]),
        "stacks": [],
        "places": [],
    }
