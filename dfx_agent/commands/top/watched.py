"""What ``top`` looks at: an agent that is asked, or segments that are read in this process."""

from __future__ import annotations

import argparse
import os

from dfx_agent.agent import config as configuration
from dfx_agent.agent.config import Config
from dfx_agent.commands.ps.agent_client import AskedAgent, NoAnswerError, named, of_folder, token_in
from dfx_agent.commands.ps.observed import FolderReader, Observed
from dfx_agent.snapshot import SignalHistory

_SNAPSHOT_STEPS = 1  # a step of 1,024 ranks is 0.3 MB


class AgentWatch:
    """The agent of ``--url``, else the one that follows the folder; another one may replace it."""

    def __init__(self, args: argparse.Namespace, config: Config, agent: AskedAgent) -> None:
        self._args, self._config, self._agent = args, config, agent

    def look(self) -> Observed:
        """NoAnswerError while no agent answers."""
        if not self._args.url:
            self._agent = _agent_of(self._args, self._config) or self._agent
        snapshot = self._agent.snapshot(_SNAPSHOT_STEPS)
        if snapshot is None:
            raise NoAnswerError(f"{self._agent.url} follows another folder")
        return Observed(self._agent.url, self._config.directory, snapshot)

    def signals(self, run: str, num_steps: int) -> SignalHistory:
        return self._agent.signals(run, num_steps)


class SegmentWatch:
    """Reads the segments, until an agent follows them: that one has seen more."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self._args, self._config = args, config
        self._reader = FolderReader(config)
        self._agent: AgentWatch | None = None

    def look(self) -> Observed:
        if self._agent is None:
            agent = _agent_of(self._args, self._config)
            if agent is None or agent.is_guess:
                return self._reader.look()
            self._reader.stop()
            self._agent = AgentWatch(self._args, self._config, agent)
        return self._agent.look()

    def signals(self, run: str, num_steps: int) -> SignalHistory:
        source = self._agent or self._reader
        return source.signals(run, num_steps)


def watched(args: argparse.Namespace) -> AgentWatch | SegmentWatch:
    """UsageError for an address or a token that cannot be used."""
    config = configuration.load({"directory": args.directory}, os.environ, None)
    agent = _agent_of(args, config)
    if agent is None or agent.is_guess:
        return SegmentWatch(args, config)
    return AgentWatch(args, config, agent)


def _agent_of(args: argparse.Namespace, config: Config) -> AskedAgent | None:
    token = token_in(args.token_file)
    return named(args.url, token) if args.url else of_folder(config, token)
