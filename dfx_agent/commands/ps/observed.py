"""What is known of this machine's runs now: from the agent that follows them, else from segments.

An agent has history that a fresh reader has not, so the one that follows the folder is asked first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dfx_agent.agent.config import Config
from dfx_agent.base.errors import DfxError, UsageError
from dfx_agent.commands.ps.agent_client import AskedAgent, NoAnswerError, asked_agent, settings_of
from dfx_agent.snapshot import RunRow, RunVerdicts, Snapshot

_ASK_AGAIN_SECONDS = 1.0
_LONGEST_WATCH_SECONDS = 86400.0


@dataclass(frozen=True)
class Observed:
    """A snapshot, where it is from, and the folder of the segments."""

    source: str
    directory: str
    snapshot: Snapshot

    @property
    def is_of_hub(self) -> bool:
        """Whether the hub of several nodes was asked: the folder here says nothing of its runs."""
        return bool(self.snapshot.agent.nodes)

    @property
    def place(self) -> str:
        """Where was looked, for people."""
        return f"at {self.source}" if self.is_of_hub else f"in {self.directory}"

    @property
    def runs(self) -> tuple[RunRow, ...]:
        return self.snapshot.runs

    @property
    def finished(self) -> tuple[RunVerdicts, ...]:
        return self.snapshot.finished

    def of_run(self, run: str | None) -> Observed | None:
        """The part about one run, or all without a name; None when there is no such run."""
        if not run:
            return self
        runs = tuple(row for row in self.runs if row.run == run)
        finished = tuple(row for row in self.finished if row.run == run)
        if not runs and not finished:
            return None
        return replace(self, snapshot=replace(self.snapshot, runs=runs, finished=finished))

    def chosen(self, run: str | None) -> Observed:
        """The same; UsageError when there is no such run."""
        only = self.of_run(run)
        if only is None:
            names = [row.run for row in self.runs] + [row.run for row in self.finished]
            existing = f"there are: {', '.join(names) or 'none'}"
            raise UsageError(f"no run named {run}: {existing}")
        return only

    def only_run(self) -> RunRow:
        """DfxError when no run is observed, UsageError when there are several."""
        if not self.runs:
            remedy = "name another folder with --dir, or an agent with --url"
            raise DfxError(f"no observed process {self.place}: {remedy}")
        if len(self.runs) > 1:
            names = ", ".join(run.run for run in self.runs)
            raise UsageError(f"several runs: choose one with --run: {names}")
        return self.runs[0]


class UnusableFolderError(UsageError):
    """The folder of segments cannot be read: a verdict that was asked for cannot be given."""


def observe(
    args: argparse.Namespace,
    seconds: float,
    is_enough: Callable[[Observed], bool] = lambda _: True,
    *,
    asks_again: bool = False,
) -> Observed:
    """Look at segments for ``seconds`` or until it ``is_enough``; ask an agent once, or as long.

    UsageError when the agent that was named does not answer, or when there is no such run.
    """
    if not 0 <= seconds <= _LONGEST_WATCH_SECONDS:
        raise UsageError(f"--watch {seconds:g}: use 0 to {_LONGEST_WATCH_SECONDS:.0f} seconds")
    config = settings_of(args)
    agent = asked_agent(args, config)
    deadline = time.monotonic() + seconds
    seen = _asked(agent, config.directory)
    if seen is None:
        return _read(config, seconds, is_enough).chosen(args.run)
    while asks_again and not is_enough(seen) and time.monotonic() < deadline:
        time.sleep(_ASK_AGAIN_SECONDS)
        again = _asked(agent, config.directory)
        seen = again or _read(config, max(0.0, deadline - time.monotonic()), is_enough)
    return seen.chosen(args.run)


def _asked(agent: AskedAgent | None, directory: str) -> Observed | None:
    """The agent's snapshot; None without an agent. Logs if it does not answer."""
    if agent is None:
        return None
    try:
        snapshot = agent.snapshot()
    except NoAnswerError as error:
        if not agent.pids:
            raise UsageError(f"no snapshot: {error}") from None
        if not agent.is_guess:
            print(f"dfx-agent: {error}; the segments are read", file=sys.stderr)
        return None
    return None if snapshot is None else Observed(agent.url, directory, snapshot)


def _read(config: Config, seconds: float, is_enough: Callable[[Observed], bool]) -> Observed:
    """Read the folder here: 650 modules more than to ask an agent, so they are imported late."""
    from dfx_agent.commands.ps.folder_reader import read_folder

    return read_folder(config, seconds, is_enough)
