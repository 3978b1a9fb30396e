"""Reads the segments of a folder without an agent.

Most calls of a verb find an agent, so they do not import this module: it is most of the package.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.alerting.evaluator import metrics_read
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.catalogue.alerts.declared import ALERTS, alerts_with
from dfx_agent.commands.ps.observed import Observed, UnusableFolderError
from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import SignalHistory, TimelineRow
from dfx_agent.wire import SegmentError


class FolderReader:
    """Reads and judges the segments of a folder in this process, as an agent does."""

    def __init__(self, config: Config) -> None:
        """UnusableFolderError if the folder cannot be read."""
        try:
            self._agent = Agent(config, reap=False)
        except SegmentError as error:
            raise UnusableFolderError(str(error)) from None
        self._config, self._alerts = config, _alerts(config, self._agent)
        self._agent.poll()

    def look(self) -> Observed:
        """The state after another reading: steps are accounted one reading behind."""
        time.sleep(self._config.poll_seconds)
        self._agent.poll()
        self._alerts.evaluate(self._agent.snapshot())
        return Observed("segments", self._config.directory, self._agent.snapshot())

    def look_for(self, seconds: float, is_enough: Callable[[Observed], bool]) -> Observed:
        """The state after ``seconds``, or as soon as it ``is_enough``."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self.look()
            if time.monotonic() >= deadline or is_enough(seen):
                return seen

    def signals(self, run: str, num_steps: int) -> SignalHistory:
        return self._agent.signal_history(run, num_steps)

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        return self._agent.timeline(run, num_steps)

    def stop(self) -> None:
        self._agent.stop()


def read_folder(config: Config, seconds: float, is_enough: Callable[[Observed], bool]) -> Observed:
    reader = FolderReader(config)
    seen = reader.look_for(seconds, is_enough)
    reader.stop()
    return seen


def _alerts(config: Config, agent: Agent) -> LiveAlerts:
    """As a serving agent has them: an incident is what verdicts and alerts say together."""
    alerts = alerts_with(dict(config.thresholds), ALERTS)
    wanted = metrics_read(alerts)
    live = LiveAlerts(agent, lambda run: run_samples(run, wanted), alerts)
    agent.await_alerts()
    live.join_incidents(agent.see_alerts)
    live.follow_symptoms(agent.signal_states)
    return live
