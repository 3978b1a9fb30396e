"""A SignalState as the samples that conditions read: what /metrics says, without the run label."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol

from dfx_agent.catalogue import signals
from dfx_agent.catalogue.alerts.conditions import Samples
from dfx_agent.catalogue.spec import Metric
from dfx_agent.snapshot import CollapseRow, SignalRow, SignalState, SymptomRow

# the symptom that speaks for the run instead of against it
REWARD_IMPROVING = "reward_improving"

Sample = tuple[Metric, Mapping[str, str], float]
_Rows = tuple[tuple[Mapping[str, str], float], ...]

# metric, labels in addition to the signal's name, attribute of the row
_OF_SIGNAL: tuple[tuple[Metric, Mapping[str, str], Callable[[Any], float | None]], ...] = (
    (signals.SIGNAL_VALUE, {}, attrgetter("value")),
    (signals.SIGNAL_Z, {}, attrgetter("z")),
    (signals.SIGNAL_RECENT_MEDIAN, {}, attrgetter("recent_median")),
    (signals.BASELINE_LOW, {}, attrgetter("baseline_low")),
    (signals.BASELINE_HIGH, {}, attrgetter("baseline_high")),
    (signals.DRIFT_RATIO, {}, attrgetter("drift_ratio")),
    (signals.DRIFT_DIFFERENCE, {}, attrgetter("drift_difference")),
    (signals.BASELINE_READY, {}, attrgetter("is_baseline_ready")),
    (signals.SIGNAL_CUSUM, {"direction": "up"}, attrgetter("cusum_up")),
    (signals.SIGNAL_CUSUM, {"direction": "down"}, attrgetter("cusum_down")),
)


def samples_of(state: SignalState) -> Samples:
    """Every sample of the state, by sample name."""
    return _grouped(signal_samples(state))


class SignalFigures(Protocol):
    """What alerts read of one signal: a SignalRow, or what makes one."""

    @property
    def signal(self) -> str: ...
    @property
    def recent_median(self) -> float | None: ...
    @property
    def drift_ratio(self) -> float | None: ...
    @property
    def drift_difference(self) -> float | None: ...


class LatestSamples:
    """Samples of the states of one run, in order; what did not change is the same object.

    ``read``: metric and signal of the samples of single signals that are wanted.
    """

    def __init__(self, read: Collection[tuple[str, str]]) -> None:
        self._wanted = {
            signal: [
                (metric.sample_name, {"signal": signal, **more}, value_of)
                for metric, more, value_of in _OF_SIGNAL
                if (metric.name, signal) in read
            ]
            for _, signal in read
        }
        self._latest_state: tuple[object, ...] = ()
        self._of_run: dict[str, _Rows] = {}

    def samples(self, state: SignalState, figures: Iterable[SignalFigures]) -> Samples:
        """``figures``: of the signals of ``read``, or of more."""
        latest_state = (
            state.symptoms,
            state.is_reward_improving,
            state.collapses,
            state.num_nonfinite_steps,
            state.num_identical_score_steps,
            state.had_score_signal,
            state.aborted_recent_median,
            state.aborted_rise,
            state.timeout_rise,
            state.is_latched,
        )
        if latest_state != self._latest_state:
            self._latest_state = latest_state
            self._follow(state)
        samples = self._of_run.copy()
        for row in figures:
            for name, labels, value_of in self._wanted.get(row.signal, ()):
                value = value_of(row)
                if value is not None:
                    samples[name] = (*samples.get(name, ()), (labels, float(value)))
        return samples

    def _follow(self, state: SignalState) -> None:
        before = self._of_run
        grouped = {name: tuple(rows) for name, rows in _grouped(_run_samples(state)).items()}
        self._of_run = {
            name: before[name] if before.get(name) == rows else rows
            for name, rows in grouped.items()
        }


def symptom_samples(
    symptoms: Iterable[SymptomRow],
    *,
    improving: bool | None,
    collapses: Iterable[CollapseRow] = (),
) -> Samples:
    """Only what the pages on training health read."""
    return _grouped((*_symptoms(symptoms, improving=improving), *_collapses(collapses)))


def _grouped(samples: Iterable[Sample]) -> Mapping[str, list[tuple[Mapping[str, str], float]]]:
    grouped: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for metric, labels, value in samples:
        grouped.setdefault(metric.sample_name, []).append((labels, value))
    return grouped


def signal_samples(state: SignalState) -> Iterator[Sample]:
    """Every sample of the state: metric, labels without run, value."""
    for row in state.signals:
        yield from _signal(row)
    yield from _run_samples(state)


def _run_samples(state: SignalState) -> Iterator[Sample]:
    """Those that are of no single signal."""
    yield from _symptoms(state.symptoms, improving=state.is_reward_improving)
    yield from _collapses(state.collapses)
    for where, num_steps in state.num_nonfinite_steps.items():
        yield signals.NONFINITE_STEPS, {"where": where}, float(num_steps)
    if state.num_identical_score_steps is not None:
        yield signals.IDENTICAL_SCORE_STEPS, {}, float(state.num_identical_score_steps)
        yield signals.SCORE_SIGNAL_SEEN, {}, float(state.had_score_signal)
    if state.aborted_recent_median is not None:
        yield signals.ABORTED_RECENT_MEDIAN, {}, state.aborted_recent_median
    if state.aborted_rise is not None:
        yield signals.ABORTED_RISE, {}, state.aborted_rise
    if state.timeout_rise:  # a run need not report timeouts, so 0 may be unknown
        yield signals.TIMEOUT_RISE, {}, state.timeout_rise
    yield signals.SIGNAL_LATCHED, {}, float(state.is_latched)


def _signal(row: SignalRow) -> Iterator[Sample]:
    for metric, more, value_of in _OF_SIGNAL:
        value = value_of(row)
        if value is not None:
            yield metric, {"signal": row.signal, **more}, float(value)


def _symptoms(symptoms: Iterable[SymptomRow], *, improving: bool | None) -> Iterator[Sample]:
    for row in symptoms:
        yield from _symptom(row)
    if improving is not None:
        yield signals.SYMPTOM_ACTIVE, _IMPROVING, float(improving)


_IMPROVING = {"symptom": REWARD_IMPROVING, "direction": "up"}


# most rows of a run stay the same from step to step: the same samples are the same objects
@lru_cache(maxsize=1024)
def _symptom(row: SymptomRow) -> tuple[Sample, ...]:
    labels = {"symptom": row.symptom, "direction": row.direction}
    active: Sample = signals.SYMPTOM_ACTIVE, labels, float(row.is_active)
    if not row.is_active or row.onset_step is None:
        return (active,)
    return active, (signals.SYMPTOM_ONSET, labels, float(row.onset_step))


def _collapses(rows: Iterable[CollapseRow]) -> Iterator[Sample]:
    for row in rows:
        yield from _collapse(row)


@lru_cache(maxsize=1024)
def _collapse(row: CollapseRow) -> tuple[Sample, ...]:
    labels = {"kind": row.kind, "signal": row.signal}
    steps: Sample = signals.COLLAPSE_STEPS, labels, float(row.num_steps)
    if row.onset_step is None:
        return (steps,)
    return steps, (signals.COLLAPSE_ONSET, labels, float(row.onset_step))
