"""Asks the agent, or reads the segments, again and again in a thread: keys answer at once."""

from __future__ import annotations

import argparse
import os
import threading
import time
from dataclasses import replace

from dfx_agent.agent.config import Config
from dfx_agent.base.errors import DfxError
from dfx_agent.commands.ps.agent_client import AskedAgent, NoAnswerError, asked_agent, settings_of
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.commands.top.rank_rows import memory_bytes
from dfx_agent.commands.top.view import Curve, Shown
from dfx_agent.snapshot import RunRow, SignalHistory

_CURVE_STEPS = 120
_CURVES = {"reward": "reward", "policy_kl": "KL", "ref_kl": "KL"}
_LEAST_SECONDS = 1.0
_SHARE = 0.1  # of the time is spent on asking: the snapshot of 1,024 ranks is large
_AGAIN_SECONDS = 2.0
_MAX_SAMPLES = 240


class Poller:
    """``shown`` is the latest state; a byte in ``wake`` says that it is new."""

    def __init__(self, watched: Watched, first: Observed) -> None:
        self.wake, self._news = os.pipe()
        self.pause, self._never = os.pipe()
        self._watched = watched
        self._memory: dict[str, list[float | None]] = {}
        self._shown = Shown(None, time.time())
        self._failed_seconds = self._received_seconds = 0.0
        self._receive(first)
        self._thread = threading.Thread(target=self._run, name="dfx-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shown(self) -> Shown:
        """The latest state on the agent's clock; a stale snapshot does not grow older."""
        shown = self._shown
        if shown.problem or shown.snapshot is None:
            return shown
        age = time.monotonic() - self._received_seconds
        return replace(shown, now_seconds=shown.snapshot.time_seconds + age)

    def _run(self) -> None:
        while True:
            begin = time.monotonic()
            try:
                self._receive(self._watched.look())
            except DfxError as error:
                self._fail(str(error))
                time.sleep(_AGAIN_SECONDS)
            spent = time.monotonic() - begin
            os.write(self._news, b"x")
            time.sleep(max(_LEAST_SECONDS - spent, spent * (1 / _SHARE - 1), 0.0))

    def _receive(self, seen: Observed) -> None:
        snapshot = seen.snapshot
        curves = {run.run: self._curves(run) for run in snapshot.runs}
        self._received_seconds, self._failed_seconds = time.monotonic(), 0.0
        self._shown = Shown(snapshot, snapshot.time_seconds, seen.source, seen.place, curves=curves)

    def _fail(self, reason: str) -> None:
        self._failed_seconds = self._failed_seconds or time.time()
        since = _clock(self._failed_seconds)
        shown = self._shown
        old = ""
        if shown.snapshot is not None:
            old = f" Below: the state of {_clock(shown.snapshot.time_seconds)}."
        problem = (
            f"No answer since {since}: {reason.rstrip('.')}.{old} The job is not affected. "
            "Trying again."
        )
        self._shown = replace(shown, problem=problem)

    def _curves(self, run: RunRow) -> tuple[Curve, ...]:
        """Reward and KL over the steps; memory since ``top`` began, as no agent stores it."""
        curves: dict[str, Curve] = {}
        try:
            history = self._watched.signals(run.run, _CURVE_STEPS)
        except DfxError:
            history = SignalHistory((), (), (), ())
        by_signal = {series.signal: series.values for series in history.signals}
        for signal, name in _CURVES.items():
            if name not in curves and any(v is not None for v in by_signal.get(signal, ())):
                curves[name] = Curve(name, by_signal[signal])
        samples = self._memory.setdefault(run.run, [])
        samples.append(most_memory(run))
        del samples[:-_MAX_SAMPLES]
        if any(sample is not None for sample in samples):
            curves["memory"] = Curve("memory", tuple(samples), "bytes")
        return tuple(curves.values())


def most_memory(run: RunRow) -> float | None:
    """Memory of the rank that uses most."""
    used = (memory_bytes(rank) for rank in run.ranks)
    return max((num_bytes for num_bytes in used if num_bytes is not None), default=None)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


_SNAPSHOT_STEPS = 1  # a step of 1,024 ranks is 0.3 MB


class AgentWatch:
    """The agent of ``--url``, else the one that follows the folder; another one may replace it."""

    def __init__(self, args: argparse.Namespace, config: Config, agent: AskedAgent) -> None:
        self._args, self._config, self._agent = args, config, agent

    def look(self) -> Observed:
        """NoAnswerError while no agent answers."""
        if not self._args.url:
            self._agent = asked_agent(self._args, self._config) or self._agent
        snapshot = self._agent.snapshot(_SNAPSHOT_STEPS)
        if snapshot is None:
            raise NoAnswerError(f"{self._agent.url} follows another folder")
        return Observed(self._agent.url, self._config.directory, snapshot)

    def signals(self, run: str, num_steps: int) -> SignalHistory:
        return self._agent.signals(run, num_steps)


class SegmentWatch:
    """Reads the segments, until an agent follows them: that one has seen more."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        from dfx_agent.commands.ps.folder_reader import FolderReader  # most of the package

        self._args, self._config = args, config
        self._reader = FolderReader(config)
        self._agent: AgentWatch | None = None

    def look(self) -> Observed:
        if self._agent is None:
            agent = asked_agent(self._args, self._config)
            if agent is None or agent.is_guess:
                return self._reader.look()
            self._reader.stop()
            self._agent = AgentWatch(self._args, self._config, agent)
        return self._agent.look()

    def signals(self, run: str, num_steps: int) -> SignalHistory:
        source = self._agent or self._reader
        return source.signals(run, num_steps)


# a failure of either raises DfxError
Watched = AgentWatch | SegmentWatch


def watched(args: argparse.Namespace) -> Watched:
    """UsageError for an address or a token that cannot be used."""
    config = settings_of(args)
    agent = asked_agent(args, config)
    if agent is None or agent.is_guess:
        return SegmentWatch(args, config)
    return AgentWatch(args, config, agent)
