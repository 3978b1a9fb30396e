"""Command-line options that all processes of the pipeline receive from their parent."""

from __future__ import annotations

import argparse
from pathlib import Path

from dfx_agent.commands.demo.faults import Fault
from examples.async_rl import faults


def add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--truth-folder", type=Path)


def shared(options: argparse.Namespace) -> tuple[int, tuple[Fault, ...], Path | None]:
    """Seed, faults, and the folder of the truth log."""
    return options.seed, faults.parse(options.fault), options.truth_folder
