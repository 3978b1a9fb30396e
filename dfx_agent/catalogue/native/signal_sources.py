"""Which metrics of the catalogue each training signal is read from, best first.

The detector scores signals. The readers of logs need the same list: a key that is a signal already
is not mapped again by its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from dfx_agent.catalogue.native import load as native_names
from dfx_agent.catalogue.native.meaning import Meaning, is_curriculum_stage, meaning_of

# signals without a baseline: aborted samples / all samples of a step, 0 to 1; highest and lowest
# score of a step
ABORTED = "aborted"
SCORE_MAX, SCORE_MIN = "score_max", "score_min"
# number of the stage of a curriculum; it is read from the words of its key
CURRICULUM = "curriculum"
# requests that timed out / samples and failed requests of a step, 0 to 1
TIMED_OUT = "timed_out"
FAILURES = "dfx_step_rollout_failures"

# metric of the catalogue and its labels, without empty labels and labels of the rank
Source = tuple[str, tuple[tuple[str, str], ...]]


def _source(metric: str, **labels: str) -> Source:
    return metric, tuple(sorted(labels.items()))


TRUNCATED = _source("dfx_response_clip_ratio")
# RLinf reports the share of ended responses, ROLL the number of truncated ones
ENDED = _source("dfx_response_ended_ratio")
NUM_TRUNCATED = _source("dfx_response_clip_samples", which="total")
NUM_SAMPLES = _source("dfx_step_samples")
# what the rollout returned, before the trainer drops samples
NUM_RETURNED = _source("dfx_rollouter_samples")
TIMEOUT_SHARE = _source("dfx_rollout_timeout_ratio")
# metrics that the guest's hooks report per model; the policy is preferred to a model without name
MODEL_METRICS = {"loss": "dfx_loss", "grad_norm": "dfx_grad_norm"}
_POLICY_MODELS = ("actor", "policy")
# these models say nothing about the policy, even if no other model reports
_OTHER_MODELS = frozenset({"critic", "ref"})
_TIMEOUT = re.compile(r"time_?d?[ _]?out", re.IGNORECASE)

# sources of each signal, best first
SOURCES: dict[str, tuple[Source, ...]] = {
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
        # the only length of prime-rl; it includes the prompt
        _source("dfx_total_length_tokens", stat="mean", env="all"),
    ),
    "truncation": (TRUNCATED, _source("dfx_response_clip_ratio", variant="train")),
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
    TIMED_OUT: (TIMEOUT_SHARE,),
    SCORE_MAX: (_source("dfx_score", stat="max"),),
    SCORE_MIN: (_source("dfx_score", stat="min"),),
    CURRICULUM: (_source("dfx_native_metric", key=CURRICULUM),),
}


_ALL_SOURCES = frozenset(
    (*(source for sources in SOURCES.values() for source in sources),
     ENDED, NUM_TRUNCATED, NUM_SAMPLES, NUM_RETURNED)
)  # fmt: skip


class Input(NamedTuple):
    """How a native key becomes a signal."""

    source: Source
    scale: float
    """Value of the source = scale * native value."""


def source_of(metric: str, labels: Mapping[str, str]) -> Source | None:
    """The source of a signal that this metric is; None if no signal uses it.

    The label ``agent`` is ignored: if several agents of a run report, the last value counts.
    """
    used = {name: text for name, text in labels.items() if text and name != "agent"}
    source = _source(metric, **used)
    is_failure = metric == FAILURES and used.keys() == {"why"}
    return source if is_failure or source in _ALL_SOURCES or signal_of_model(source) else None


def signal_of_model(source: Source) -> str | None:
    """The signal of a metric that is labelled by model only; None for critic and ref."""
    metric, labels = source
    if tuple(name for name, _ in labels) != ("model",) or labels[0][1] in _OTHER_MODELS:
        return None
    return next((signal for signal, name in MODEL_METRICS.items() if name == metric), None)


def is_timeout(why: str) -> bool:
    """Whether this reason of a failed request is a timeout: "timeout", "ReadTimeout", ..."""
    return _TIMEOUT.search(why) is not None


@lru_cache(maxsize=4096)
def input_of(framework: str, key: str) -> Input | None:
    """How to read this native key of a framework; None if no signal uses it."""
    native = native_names(framework).find(key)
    if native is None and is_curriculum_stage(key):
        return Input(SOURCES[CURRICULUM][0], 1.0)
    source = native and source_of(native.metric, native.labels)
    return Input(source, native.scale) if native and source else None


@lru_cache(maxsize=4096)
def signal_of(framework: str, key: str) -> str | None:
    """The name of the signal that uses this native key; None if no signal does."""
    found = input_of(framework, key)
    if found is None:
        return None
    if found.source in {ENDED, NUM_TRUNCATED}:
        return "truncation"
    names = (signal for signal, sources in SOURCES.items() if found.source in sources)
    return next(names, None) or signal_of_model(found.source)


@lru_cache(maxsize=4096)
def clear_meaning(framework: str, key: str) -> Meaning | None:
    """The meaning of a key that the catalogue does not list; None if a word is not understood."""
    if native_names(framework).find(key) is not None:
        return None
    meaning = meaning_of(key)
    return meaning if meaning is not None and meaning.is_clear else None
