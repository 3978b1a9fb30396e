"""From metrics of the catalogue to the signals of the bank, live and from log files alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from dfx_agent.catalogue.native import MAPPED_PREFIX
from dfx_agent.catalogue.native import load as native_names
from dfx_agent.catalogue.native.meaning import Meaning, keys_by_signal, meaning_of
from dfx_agent.judge.divergence.aborted_share import ABORTED
from dfx_agent.judge.divergence.kept import Kept
from dfx_agent.judge.divergence.score_spread import SCORE_MAX, SCORE_MIN
from dfx_agent.judge.divergence.symptoms import SIGNALS, StepSignals

# catalogue metric and its labels without those of the rank; empty labels are not there
Source = tuple[str, tuple[tuple[str, str], ...]]


def _source(metric: str, **labels: str) -> Source:
    return metric, tuple(sorted(labels.items()))


_TRUNCATED = _source("dfx_response_clip_ratio")
# frameworks that tell it in other words: RLinf who ended, ROLL how many did not
_ENDED = _source("dfx_response_ended_ratio")
_NUM_TRUNCATED = _source("dfx_response_clip_samples", which="total")
_NUM_SAMPLES = _source("dfx_step_samples")
# what the guest's hooks name by model: the policy goes before an optimizer without a name
_BY_MODEL = {"loss": "dfx_loss", "grad_norm": "dfx_grad_norm"}
_POLICY_MODELS = ("actor", "policy")
# they say nothing of the policy, also where nobody else reports
_OTHER_MODELS = frozenset({"critic", "ref"})
# reports of one model alone after which no policy is waited for any more
LONE_STEPS = 32
# steps in which others report and the one that speaks does not, until another speaks
SILENT_STEPS = 32

# best first
_SOURCES: dict[str, tuple[Source, ...]] = {
    "policy_kl": (_source("dfx_policy_kl_k1_nats"),),
    "policy_kl_k2": (_source("dfx_policy_kl_k2_nats"),),
    "ref_kl": (_source("dfx_ref_kl_nats"),),
    "ref_kl_reward": (_source("dfx_ref_kl_nats", variant="reward"),),
    "mismatch_kl": (_source("dfx_mismatch_kl_k1_nats"),),
    "mismatch_kl_k3": (_source("dfx_mismatch_kl_k3_nats"),),
    "mismatch_logp": (_source("dfx_rollout_train_logp_absdiff_nats", stat="mean"),),
    "clip_fraction": (_source("dfx_clip_fraction"),),
    "grad_norm": (
        _source("dfx_actor_grad_norm"),
        *(_source("dfx_grad_norm", model=model) for model in _POLICY_MODELS),
        _source("dfx_grad_norm"),
    ),
    "entropy": (_source("dfx_actor_entropy_nats"),),
    # the score has no KL penalty in it: a rising KL must not count twice
    "reward": (
        _source("dfx_score", stat="mean"),
        _source("dfx_reward", stat="mean"),
        _source("dfx_reward", stat="mean", variant="train"),  # OpenRLHF's, of the samples trained
    ),
    "response_length": (
        _source("dfx_response_length_tokens", stat="mean"),
        _source("dfx_response_length_tokens", stat="mean", variant="train"),
        # prime-rl prints no other; prompts are in it
        _source("dfx_total_length_tokens", stat="mean", env="all"),
    ),
    "truncation": (_TRUNCATED, _source("dfx_response_clip_ratio", variant="train")),
    ABORTED: tuple(
        _source("dfx_aborted_ratio", **why)
        for why in ({}, {"why": "has_error"}, {"why": "empty_response"}, {"why": "cancelled"})
    ),
    "loss": (
        _source("dfx_actor_loss", term="pg"),
        _source("dfx_actor_loss", term="total"),
        *(_source("dfx_loss", model=model) for model in _POLICY_MODELS),
        _source("dfx_loss"),
    ),
    SCORE_MAX: (_source("dfx_score", stat="max"),),
    SCORE_MIN: (_source("dfx_score", stat="min"),),
}


_KNOWN = frozenset(
    (*(source for sources in _SOURCES.values() for source in sources),
     _ENDED, _NUM_TRUNCATED, _NUM_SAMPLES)
)  # fmt: skip


# metrics in which a NaN or Inf is a finding -> what it is the fault of; also of other models
_PLACES = {
    "dfx_critic_loss": "loss",
    "dfx_actor_entropy_loss": "loss",
    "dfx_critic_grad_norm": "grad",
    **{
        source[0]: spec.where
        for spec in SIGNALS
        for source in _SOURCES[spec.name]
        if spec.where in {"loss", "grad"}
    },
}


def broken_place(framework: str, key: str) -> str | None:
    """Where a NaN in this native key is a finding of its own: "loss", "grad"."""
    native = native_names(framework).find(key)
    return _PLACES.get(native.metric) if native else None


class Input(NamedTuple):
    """What a native key is to the signals: ``value = scale * native value`` of this source."""

    source: Source
    scale: float


def source_of(metric: str, labels: Mapping[str, str]) -> Source | None:
    """Where a metric goes; None when no signal is made of it. The same for every step.

    Of several agents of one run (label ``agent``) the one that is reported last speaks for it.
    """
    told = {name: text for name, text in labels.items() if text and name != "agent"}
    source = _source(metric, **told)
    return source if source in _KNOWN or _signal_of_model(source) else None


def _signal_of_model(source: Source) -> str | None:
    """The signal that a model gives when it is the only one of its run."""
    metric, labels = source
    if tuple(name for name, _ in labels) != ("model",) or labels[0][1] in _OTHER_MODELS:
        return None
    return next((signal for signal, name in _BY_MODEL.items() if name == metric), None)


@lru_cache(maxsize=4096)
def input_of(framework: str, key: str) -> Input | None:
    """A native key of this framework; None when no signal is made of it."""
    native = native_names(framework).find(key)
    source = native and source_of(native.metric, native.labels)
    return Input(source, native.scale) if native and source else None


@lru_cache(maxsize=4096)
def signal_of(framework: str, key: str) -> str | None:
    """The signal that a native key of this framework is read for; None if for none."""
    found = input_of(framework, key)
    if found is None:
        return None
    if found.source in {_ENDED, _NUM_TRUNCATED}:
        return "truncation"
    names = (signal for signal, sources in _SOURCES.items() if found.source in sources)
    return next(names, None) or _signal_of_model(found.source)


class LiveInputs:
    """Native keys of a live run. What no file of the catalogue names is read by meaning.

    Only a key of which every word is understood is read so, and only for a signal that no known
    key gives. Of several such keys the best one is read from the moment that it is reported.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._by_meaning: dict[str, str] = {}

    def find(self, framework: str, key: str) -> Input | None:
        found = input_of(framework, key)
        if found is not None:
            if (signal := signal_of(framework, key)) is not None:
                self._known.add(signal)
            return found
        meaning = clear_meaning(framework, key)
        if meaning is None or meaning.signal in self._known:
            return None
        before = self._by_meaning.setdefault(meaning.signal, key)
        if before != key and keys_by_signal([before, key])[meaning.signal][0] == key:
            self._by_meaning[meaning.signal] = before = key
        return input_of(framework, MAPPED_PREFIX + meaning.signal) if before == key else None


@lru_cache(maxsize=4096)
def clear_meaning(framework: str, key: str) -> Meaning | None:
    """What a key means that this framework's names do not know; None where words are strange."""
    if native_names(framework).find(key) is not None:
        return None
    meaning = meaning_of(key)
    return meaning if meaning is not None and meaning.is_clear else None


_T = TypeVar("_T")


class Speaker(Generic[_T]):
    """Who speaks for one thing: the same one for as long as it does not fall silent."""

    def __init__(self, chosen: _T | None = None) -> None:
        self.chosen = chosen
        self._num_silent = 0

    def choose(self, candidates: Sequence[_T]) -> tuple[_T | None, bool]:
        """Who of them (best first) speaks in this step, and whether another did before."""
        if self.chosen in candidates:
            self._num_silent = 0
            return self.chosen, False
        if self.chosen is not None and candidates:
            self._num_silent += 1
        if not candidates or 0 < self._num_silent < SILENT_STEPS:
            return None, False
        is_other = self.chosen is not None
        self.chosen, self._num_silent = candidates[0], 0
        return self.chosen, is_other


@dataclass(frozen=True)
class KeptSpeaker(Kept):
    """The metric that speaks for a signal."""

    signal: str
    metric: str
    labels: tuple[tuple[str, str], ...]


class SignalInputs:
    """Chooses the values of one run that are signals."""

    def __init__(self) -> None:
        self._speakers: dict[str, Speaker[Source]] = {}
        # by signal: a model that reports alone, and how often in a row
        self._lone: dict[str, tuple[Source, int]] = {}
        # what a step with the same sources is read from, where no speaker is about to change
        self._sources: dict[Source, None] = {}
        self._chosen: dict[str, Source] = {}

    def signals(self, values: Mapping[Source, float]) -> StepSignals:
        """Values by signal, for the signals that this step reported."""
        values = _with_truncation(values)
        changed: frozenset[str] = frozenset()
        if not self._sources or values.keys() != self._sources.keys():
            changed = self._choose(values)
        found = StepSignals({signal: values[source] for signal, source in self._chosen.items()})
        if changed:
            found.changed = changed
        return found

    def _choose(self, values: Mapping[Source, float]) -> frozenset[str]:
        """Who speaks for each signal in this step; returns the signals with another speaker."""
        self._chosen, changed, is_settled = {}, set(), True
        for signal in _SOURCES:
            speaker = self._speakers.setdefault(signal, Speaker())
            before = self._lone.get(signal)
            candidates = self._candidates(signal, values)
            source, is_other = speaker.choose(candidates)
            if source is not None:
                self._chosen[signal] = source
            if is_other:
                changed.add(signal)
            is_waiting = bool(candidates) and source is None
            is_settled &= not (is_waiting or self._lone.get(signal) is not before)
        self._sources = dict.fromkeys(values) if is_settled else {}
        return frozenset(changed)

    def source(self, signal: str) -> Source | None:
        """What speaks for a signal; None before anything did."""
        speaker = self._speakers.get(signal)
        return None if speaker is None else speaker.chosen

    def _candidates(self, signal: str, values: Mapping[Source, float]) -> list[Source]:
        found = [source for source in _SOURCES[signal] if source in values]
        chosen = self.source(signal)
        if chosen is not None and chosen in values and chosen not in found:
            return [chosen]  # a lone model
        lone = None if found else self._lone_model(signal, values)
        return found if lone is None else [lone]

    def _lone_model(self, signal: str, values: Mapping[Source, float]) -> Source | None:
        """The only model there is, once it has been the only one for long."""
        if signal not in _BY_MODEL:
            return None
        models = [source for source in values if _signal_of_model(source) == signal]
        if not models:
            return None
        before, num_steps = self._lone.get(signal, (models[0], 0))
        is_alone = models == [before]
        self._lone[signal] = models[0], num_steps + 1 if is_alone else 0
        return before if is_alone and num_steps + 1 >= LONE_STEPS else None

    def kept(self) -> tuple[KeptSpeaker, ...]:
        speakers = self._speakers.items()
        return tuple(KeptSpeaker(signal, *s.chosen) for signal, s in speakers if s.chosen)

    def resume(self, kept: Iterable[KeptSpeaker]) -> None:
        self._speakers = {of.signal: Speaker((of.metric, of.labels)) for of in kept}
        self._sources = {}


def _with_truncation(values: Mapping[Source, float]) -> Mapping[Source, float]:
    """With the share of cut responses, where the step tells it in other words."""
    if _TRUNCATED in values:
        return values
    if _ENDED in values:
        return {**values, _TRUNCATED: 1.0 - values[_ENDED]}
    if _NUM_TRUNCATED in values and values.get(_NUM_SAMPLES, 0.0) > 0.0:
        return {**values, _TRUNCATED: values[_NUM_TRUNCATED] / values[_NUM_SAMPLES]}
    return values
