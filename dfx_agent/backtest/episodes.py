"""When the alerts would have come over a finished run: episodes instead of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dfx_agent.alerting.evaluator import Evaluator, metrics_read
from dfx_agent.catalogue import signals
from dfx_agent.rules.alert import Alert, Severity
from dfx_agent.rules.declared import ALERTS
from dfx_agent.rules.samples import samples_of
from dfx_agent.snapshot import SignalState

# firings of one alert that are less far apart are one call to a person
EPISODE_GAP_ROWS = 20
# what a log of metrics can make fire; of an alert that reads something else too, that never holds
STEP_CLOCKED = tuple(
    alert for alert in ALERTS if metrics_read([alert]) & {m.name for m in signals.METRICS}
)


@dataclass
class Episode:
    """One alert as a person would have met it; rows count step reports from 0."""

    alert: str
    severity: Severity
    row: int
    step: int
    last_row: int
    symptoms: dict[str, int]
    last_step: int = 0


def episodes(
    states: Iterable[SignalState], alerts: tuple[Alert, ...] = STEP_CLOCKED
) -> list[Episode]:
    """Every one of ``alerts`` that would have been delivered, in the order of their rows."""
    evaluator, read = Evaluator(alerts), metrics_read(alerts)
    found: list[Episode] = []
    open_episodes: dict[tuple[str, Severity], Episode] = {}
    for state in states:
        for firing in evaluator.observe(state, samples_of(state, read)):
            key = firing.alert.name, firing.alert.severity
            episode = open_episodes.get(key)
            if episode is not None and state.row - episode.last_row < EPISODE_GAP_ROWS:
                episode.last_row, episode.last_step = state.row, state.step
            elif not firing.is_inhibited:
                episode = Episode(
                    *key, state.row, state.step, state.row, firing.symptoms, state.step
                )
                open_episodes[key] = episode
                found.append(episode)
    return found
