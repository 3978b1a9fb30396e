"""What this machine and a job on it allow, line by line, each with its remedy."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Iterable, Iterator

from dfx_agent.agent import config as configuration
from dfx_agent.agent.config import Config
from dfx_agent.commands.doctor import attaching, devices, folder, neighbours, versions
from dfx_agent.commands.doctor.finding import Finding
from dfx_agent.snapshot.document import Document

HELP = "say what this machine and a job on it allow, and what to do about what they do not"
EXAMPLE = """dfx-agent doctor
  dfx-agent doctor --pid 4711 --json

exit code: 0 nothing stands in the way, 1 something does (a line says "problem", and what ends it),
2 wrong use. What is absent and not in the way, as a kind of GPU that is not here, is no problem.
Nothing is changed, and no thread of a job is stopped."""

_WIDTH = 100
_MARKS = {"ok": "ok", "absent": "-", "problem": "problem"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, help="any process of a job: can a guest come in?")
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    parser.add_argument(
        "--prometheus", metavar="URL", help=f"Prometheus ({neighbours.DEFAULT_PROMETHEUS})"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def execute(args: argparse.Namespace) -> int:
    """1 where there is a problem."""
    config = configuration.load({"directory": args.directory}, os.environ, None)
    found = tuple(_findings(config, args))
    if args.json:
        print(Document[tuple[Finding, ...]](tuple[Finding, ...]).dumped(found).decode())
    else:
        _print(found)
    return 1 if any(finding.state == "problem" for finding in found) else 0


def _findings(config: Config, args: argparse.Namespace) -> Iterator[Finding]:
    yield from versions.findings()
    yield from folder.findings(config.directory)
    yield from attaching.findings(args.pid)
    yield from devices.findings()
    yield from neighbours.findings(config, args.prometheus)


def _print(found: Iterable[Finding]) -> None:
    rows = list(found)
    width = max(len(row.subject) for row in rows)
    indent = " " * (width + 11)
    for row in rows:
        head = f"{_MARKS[row.state]:7}  {row.subject:{width}}  "
        print(textwrap.fill(f"{head}{row.text}", _WIDTH, subsequent_indent=indent))
        if row.remedy and row.state != "ok":
            print(textwrap.fill(f"{indent}→ {row.remedy}", _WIDTH, subsequent_indent=f"{indent}  "))
