"""Chooses the values of a run that the detector reads as signals, live and from log files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dfx_agent.catalogue.native import MAPPED_PREFIX
from dfx_agent.catalogue.native import load as native_names
from dfx_agent.catalogue.native.meaning import keys_by_signal
from dfx_agent.catalogue.native.signal_sources import (
    ENDED,
    FAILURES,
    MODEL_METRICS,
    NUM_RETURNED,
    NUM_SAMPLES,
    NUM_TRUNCATED,
    SOURCES,
    TIMEOUT_SHARE,
    TRUNCATED,
    Input,
    Source,
    clear_meaning,
    input_of,
    is_timeout,
    signal_of,
    signal_of_model,
)
from dfx_agent.judge.divergence.saved_state import SavedState
from dfx_agent.judge.divergence.symptoms import SIGNALS, StepSignals

# if only one model has reported for this many steps, it is used as the policy
ONLY_MODEL_STEPS = 32
# a source that is missing for this many steps is replaced by another one
MISSING_STEPS = 32

# metrics in which a NaN or Inf is a finding -> place of the fault; includes other models
_PLACES = {
    "dfx_critic_loss": "loss",
    "dfx_actor_entropy_loss": "loss",
    "dfx_critic_grad_norm": "grad",
    **{
        source[0]: spec.where
        for spec in SIGNALS
        for source in SOURCES[spec.name]
        if spec.where in {"loss", "grad"}
    },
}


def broken_place(framework: str, key: str) -> str | None:
    """The place ("loss" or "grad") in which a NaN of this native key is a finding, else None."""
    native = native_names(framework).find(key)
    return _PLACES.get(native.metric) if native else None


class LiveInputs:
    """Maps native keys of a live run to signals.

    A key that the catalogue does not list is mapped by its meaning, if every word of it is
    understood and no listed key provides the signal. If several such keys provide one signal, the
    best one is used as soon as it is reported.
    """

    def __init__(self) -> None:
        self._listed_signals: set[str] = set()  # signals that a listed key provides
        self._key_by_signal: dict[str, str] = {}  # keys that were mapped by meaning

    def find(self, framework: str, key: str) -> Input | None:
        """How to read this native key; None if no signal uses it."""
        found = input_of(framework, key)
        if found is not None:
            if (signal := signal_of(framework, key)) is not None:
                self._listed_signals.add(signal)
            return found
        meaning = clear_meaning(framework, key)
        if meaning is None or meaning.signal in self._listed_signals:
            return None
        before = self._key_by_signal.setdefault(meaning.signal, key)
        if before != key and keys_by_signal([before, key])[meaning.signal][0] == key:
            self._key_by_signal[meaning.signal] = before = key
        return input_of(framework, MAPPED_PREFIX + meaning.signal) if before == key else None


_T = TypeVar("_T")


class StickySource(Generic[_T]):
    """The chosen source of one signal. It changes only if the source stops reporting."""

    def __init__(self, chosen: _T | None = None) -> None:
        self.chosen = chosen
        self._num_missing = 0

    def choose(self, candidates: Sequence[_T]) -> tuple[_T | None, bool]:
        """(the source for this step, whether it has just replaced another one).

        ``candidates``: sources that report in this step, best first.
        """
        if self.chosen in candidates:
            self._num_missing = 0
            return self.chosen, False
        if self.chosen is not None and candidates:
            self._num_missing += 1
        if not candidates or 0 < self._num_missing < MISSING_STEPS:
            return None, False
        is_other = self.chosen is not None
        self.chosen, self._num_missing = candidates[0], 0
        return self.chosen, is_other


@dataclass(frozen=True)
class SavedSource(SavedState):
    """Saved choice: the metric that is used for a signal."""

    signal: str
    metric: str
    labels: tuple[tuple[str, str], ...]


class SignalInputs:
    """Chooses one metric for each signal of a run."""

    def __init__(self) -> None:
        self._sticky_by_signal: dict[str, StickySource[Source]] = {}
        # signal -> (the only model that reports it, for how many steps in a row)
        self._only_model: dict[str, tuple[Source, int]] = {}
        # sources of the last step, if a step with the same sources needs no new choice
        self._settled_sources: dict[Source, None] = {}
        self._chosen: dict[str, Source] = {}

    def signals(self, values: Mapping[Source, float]) -> StepSignals:
        """Values by signal, for the signals that this step reports."""
        values = _with_timeouts(_with_truncation(values))
        changed: frozenset[str] = frozenset()
        if not self._settled_sources or values.keys() != self._settled_sources.keys():
            changed = self._choose(values)
        found = StepSignals({signal: values[source] for signal, source in self._chosen.items()})
        if changed:
            found.changed = changed
        return found

    def _choose(self, values: Mapping[Source, float]) -> frozenset[str]:
        """Choose the source of each signal. Returns the signals whose source has changed."""
        self._chosen, changed, is_settled = {}, set(), True
        for signal in SOURCES:
            sticky = self._sticky_by_signal.setdefault(signal, StickySource())
            before = self._only_model.get(signal)
            candidates = self._candidates(signal, values)
            source, is_other = sticky.choose(candidates)
            if source is not None:
                self._chosen[signal] = source
            if is_other:
                changed.add(signal)
            is_waiting = bool(candidates) and source is None
            is_settled &= not (is_waiting or self._only_model.get(signal) is not before)
        self._settled_sources = dict.fromkeys(values) if is_settled else {}
        return frozenset(changed)

    def source(self, signal: str) -> Source | None:
        """The chosen source of a signal; None before one was chosen."""
        sticky = self._sticky_by_signal.get(signal)
        return None if sticky is None else sticky.chosen

    def _candidates(self, signal: str, values: Mapping[Source, float]) -> list[Source]:
        found = [source for source in SOURCES[signal] if source in values]
        chosen = self.source(signal)
        if chosen is not None and chosen in values and chosen not in found:
            return [chosen]  # the only model
        only_model = None if found else self._long_only_model(signal, values)
        return found if only_model is None else [only_model]

    def _long_only_model(self, signal: str, values: Mapping[Source, float]) -> Source | None:
        """The only model of the run, once it has been the only one for 32 steps."""
        if signal not in MODEL_METRICS:
            return None
        models = [source for source in values if signal_of_model(source) == signal]
        if not models:
            return None
        before, num_steps = self._only_model.get(signal, (models[0], 0))
        is_alone = models == [before]
        self._only_model[signal] = models[0], num_steps + 1 if is_alone else 0
        return before if is_alone and num_steps + 1 >= ONLY_MODEL_STEPS else None

    def save(self) -> tuple[SavedSource, ...]:
        sticky_sources = self._sticky_by_signal.items()
        return tuple(
            SavedSource(signal, *sticky.chosen)
            for signal, sticky in sticky_sources
            if sticky.chosen
        )

    def resume(self, saved: Iterable[SavedSource]) -> None:
        self._sticky_by_signal = {
            choice.signal: StickySource((choice.metric, choice.labels)) for choice in saved
        }
        self._settled_sources = {}


def _with_truncation(values: Mapping[Source, float]) -> Mapping[Source, float]:
    """Add the share of truncated responses if the step reports it in another form."""
    if TRUNCATED in values:
        return values
    if ENDED in values:
        return {**values, TRUNCATED: 1.0 - values[ENDED]}
    if NUM_TRUNCATED in values and values.get(NUM_SAMPLES, 0.0) > 0.0:
        return {**values, TRUNCATED: values[NUM_TRUNCATED] / values[NUM_SAMPLES]}
    return values


def _with_timeouts(values: Mapping[Source, float]) -> Mapping[Source, float]:
    """Add the share of requests that timed out, if the step reports failures."""
    num_failed = {labels: n for (metric, labels), n in values.items() if metric == FAILURES}
    num_timeouts = sum(n for labels, n in num_failed.items() if is_timeout(dict(labels)["why"]))
    num_samples = values.get(NUM_RETURNED, values.get(NUM_SAMPLES, math.nan))
    num_requests = num_samples + sum(num_failed.values())
    share = {TIMEOUT_SHARE: num_timeouts / num_requests} if num_failed and num_requests > 0 else {}
    return {**values, **share}
