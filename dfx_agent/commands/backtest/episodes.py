"""Groups firing rows of a finished run into episodes of alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from dfx_agent.alerting.evaluator import Evaluator, Firing, metrics_read, signals_read
from dfx_agent.base.text import joined
from dfx_agent.catalogue import signals
from dfx_agent.catalogue.alerts.alert import Alert, Severity
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.declared.stability import (
    CLASSIC,
    DIVERGENCE,
    ENTROPY_DRIFT,
    LENGTH_DRIFT,
    NONFINITE,
    REFERENCE_KL_DRIFT,
)
from dfx_agent.catalogue.alerts.samples import LatestSamples, SignalFigures
from dfx_agent.catalogue.spec import metrics_of
from dfx_agent.judge.divergence.verdict import (
    divergence_verdict,
    drift_text,
    moved_text,
    nonfinite_text,
)
from dfx_agent.snapshot import SignalState

# firings of one alert that are closer together are one episode
EPISODE_GAP_ROWS = 20
# alerts that a log of metrics can activate
STEP_CLOCKED = tuple(
    alert for alert in ALERTS if metrics_read([alert]) & {m.name for m in metrics_of(signals)}
)
_DRIFTS = {
    ENTROPY_DRIFT.name: "entropy",
    LENGTH_DRIFT.name: "response_length",
    REFERENCE_KL_DRIFT.name: "ref_kl",
}
_DIVERGENCE_NAMES = {DIVERGENCE.name, CLASSIC.name}


@dataclass
class Episode:
    """One alert as a person would have met it; rows count step reports from 0.

    ``onset_step``: since when, of a divergence. ``sentence`` says what moved, from where to where
    and since when; ``action`` what to do first.
    """

    alert: str
    severity: Severity
    row: int
    step: int
    last_row: int
    symptoms: dict[str, int]
    last_step: int = 0
    onset_step: int | None = None
    sentence: str = ""
    action: str = ""


class EpisodeFinder:
    """Of one run; ``episodes``: every alert that would have been delivered, in order of rows."""

    def __init__(self, alerts: tuple[Alert, ...] = STEP_CLOCKED) -> None:
        self.episodes: list[Episode] = []
        self._evaluator = Evaluator(alerts)
        self._samples = LatestSamples(signals_read(alerts))
        self._open: dict[tuple[str, Severity], Episode] = {}
        self._nonfinite_since: dict[str, int] = {}  # place -> step

    def observe(
        self,
        state: SignalState,
        figures: Iterable[SignalFigures],
        full_state: Callable[[], SignalState],
    ) -> None:
        """The next state; ``full_state`` has the rows of its signals too."""
        if self._nonfinite_since or any(state.num_nonfinite_steps.values()):
            self._follow_nonfinite(state)
        for firing in self._evaluator.observe(state, self._samples.samples(state, figures)):
            key = firing.alert.name, firing.alert.severity
            episode = self._open.get(key)
            if episode is not None and state.row - episode.last_row < EPISODE_GAP_ROWS:
                episode.last_row, episode.last_step = state.row, state.step
            elif not firing.is_inhibited:
                self._open[key] = self._opened(firing, full_state())
                self.episodes.append(self._open[key])

    def _follow_nonfinite(self, state: SignalState) -> None:
        """Since when values are NaN or infinite, by place."""
        self._nonfinite_since = {
            where: self._nonfinite_since.get(where, state.step)
            for where, num in state.num_nonfinite_steps.items()
            if num
        }

    def _opened(self, firing: Firing, state: SignalState) -> Episode:
        """As the page and the terminal of a live run would say it."""
        alert, onset_step = firing.alert, None
        sentence, action = alert.summary, alert.runbook.mitigation
        if alert.name in _DIVERGENCE_NAMES:
            verdict = divergence_verdict(state, "", alert.condition)
            sentence, action, onset_step = verdict.summary, verdict.action, verdict.step
        elif alert.name == NONFINITE.name:
            sentence = nonfinite_text(state, self._nonfinite_since) or alert.summary
        else:
            moved = _reason(alert, state)
            sentence = joined([f"{alert.summary}: {moved}" if moved else alert.summary])
        return Episode(
            alert.name, alert.severity, state.row, state.step, state.row, firing.symptoms,
            state.step, onset_step, sentence, action,
        )  # fmt: skip


def episodes(
    states: Iterable[SignalState], alerts: tuple[Alert, ...] = STEP_CLOCKED
) -> list[Episode]:
    """Of a run with these states."""
    finder = EpisodeFinder(alerts)
    for state in states:
        finder.observe(state, state.signals, partial(_same, state))
    return finder.episodes


def _same(state: SignalState) -> SignalState:
    return state


def _reason(alert: Alert, state: SignalState) -> str:
    drifted = _DRIFTS.get(alert.name)
    return drift_text(state, drifted) if drifted else moved_text(state)
