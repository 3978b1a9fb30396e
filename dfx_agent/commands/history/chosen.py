"""Which stored run a verb means: a name, an id or a file."""

from __future__ import annotations

import argparse
import os

from dfx_agent.agent import config as configuration
from dfx_agent.base.errors import UsageError
from dfx_agent.exporters.history import folder
from dfx_agent.exporters.history.stored_run import path_of, runs_in

_MOST_NAMES = 8


def add_history_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the history is."""
    parser.add_argument(
        "--history-directory", metavar="DIR", help="folder of the history (that of the settings)"
    )
    parser.add_argument("--config", metavar="FILE", help="settings file (dfx.yaml if it exists)")


def directory_in(args: argparse.Namespace) -> str:
    """The folder of the history. UsageError if the settings disable it."""
    flags = {"history_directory": args.history_directory}
    config = configuration.load(flags, os.environ, args.config)
    directory = folder.directory_of(config.history_directory)
    if directory is None:
        raise UsageError("history_directory is off: give --history-directory DIR")
    return directory


def chosen_path(name: str | None, args: argparse.Namespace) -> str:
    """The file of this run, or of the latest run without a name. UsageError if there is none."""
    if name is not None and os.path.isfile(name):
        return name  # also where the settings store no history
    directory = directory_in(args)
    if name is not None and (found := path_of(name, directory)) is not None:
        return found
    runs, problems = runs_in(directory)
    if name is None and runs:
        return runs[0].path
    if not runs:
        problem = f" ({problems[0]})" if problems else ""
        raise UsageError(f"no stored run in {directory}{problem}: name a folder or a file")
    names = ", ".join(list(dict.fromkeys(run.run for run in runs))[:_MOST_NAMES])
    raise UsageError(f"no stored run {name} in {directory}: there are: {names}")
