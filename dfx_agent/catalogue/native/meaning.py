"""What the words of a native key mean, for keys that no file of this folder names.

A key is split into words: ``train/mean_reward`` -> train, mean, reward. Words that name another
quantity (a minimum, a coefficient, a duration) exclude it. Of several keys for one signal the one
with the smallest ``rank`` is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MAX_KEY_CHARS = 200
# words written together, as (how logs write them, words)
_JOINED = {
    "gnorm": ("grad", "norm"),
    "gradnorm": ("grad", "norm"),
    "clipfrac": ("clip", "fraction"),
    "clipfraction": ("clip", "fraction"),
    "clipratio": ("clip", "fraction"),
    "kldiv": ("kl",),
    "kld": ("kl",),
    "pgloss": ("pg", "loss"),
}


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_MEAN = _set("mean avg average mu")
_EVAL = _set("eval evaluation evals val validation heldout holdout")
# only where a part of the key begins with them: "test/reward", not "unit_test_reward"
_EVAL_FIRST = re.compile(r"(?:^|[/.])(?:valid|test|dev)(?![a-z])", re.IGNORECASE)
# another statistic, another unit or a setting: no mean of a signal, whatever else the key says
_OTHER_QUANTITIES = _set(
    "std stdev stddev sd var variance min minimum max maximum count num n sum error err stderr sem "
    "ci ci95 time secs sec second seconds s ms duration throughput lr coef coeff coefficient beta "
    "alpha weight scale scaling target threshold limit cap budget eps epsilon config gb mb bytes "
    "memory mem best worst baseline advantage advantages adv p5 p10 p25 p75 p90 p95 p99 skew "
    "kurtosis quantile percentile delta improvement gap discount gamma seed rank penalty bonus "
    "zero nonzero skipped ± schedule decay margin margins clamp temp temperature chosen rejected"
)
# they say where or when a value was measured, and nothing of what it is
_PLACES = _set(
    "train training trainer actor policy rollout rollouts env envs environment all metrics "
    "metric stats stat objective optim optimizer model agent global batch step steps iter "
    "iteration log logs data perf rl rlhf grpo ppo rloo dapo reinforce dpo gspo extra record "
    "fields value values current cur raw total overall running per sample samples episode "
    "episodes ep group groups the of in nats tokens token rate ratio generator learner worker "
    "main core answer final reward rewards score scores loss losses completions completion "
    "response responses summary info game task tasks valid test dev"
)
_CURRICULUM = _set("curriculum difficulty curr")
_STAGE = _set("stage level phase lesson difficulty")
_SMOOTHED = _set("ema running smoothed smooth moving rolling ma cumulative cum epoch avg100")
_REWARD_WORDS = (
    _set("reward rewards rew rews"),
    _set("score scores"),
    _set("return returns ret"),
    _set("accuracy acc accuracies"),
    _set("success correct correctness solved solve solverate winrate pass win"),
)
_LENGTH = _set("length lengths len lens")
_TOKENS = _set("tokens token toks tok")
_RESPONSE = _set(
    "response responses resp completion completions output outputs generation generations "
    "gen generated answer answers ac action decode"
)
_SEQUENCE = _set("sequence sequences seq trajectory traj rollout")
_PROMPT = _set("prompt prompts input inputs context query question ob obs observation")
_SHARE = _set("frac fraction ratio rate share pct percent percentage")
_CLIP = _set("clip clipped clipping cliprange")
_TRUNCATED = _set("truncated truncation trunc overlong")
_VALUE_NET = _set("critic vf vf1 vf2 value values v vpred baseline aux auxiliary router moe")
_POLICY = _set("policy pg actor ppo grpo surrogate pi")
_GRAD = _set("grad grads gradient gradients")
_NORM = _set("norm norms magnitude l2")
_KL_OF_REFERENCE = _set("ref reference base init initial sft")
_KL_OF_UPDATE = _set("approx approxkl old ppo policy behavior behaviour behav update proximal")
_KL_OF_ENGINES = _set("mismatch infer inference vllm sglang engine sampler")


@dataclass(frozen=True)
class Meaning:
    """``signal`` as ``--map`` names it. ``rank``: the smaller, the surer.

    ``is_eval``: measured on held-out data. ``is_clear``: every word of the key is understood.
    """

    signal: str
    is_eval: bool
    is_clear: bool
    rank: tuple[int, ...]


@lru_cache(maxsize=20_000)
def meaning_of(key: str) -> Meaning | None:
    """None for a key that means no signal.

    >>> meaning_of("train/mean_reward").signal
    'reward'
    """
    if len(key) > _MAX_KEY_CHARS:
        return None
    words = words_of(key)
    found = _signal(frozenset(words))
    if found is None:
        return None
    signal, quality, explained = found
    strange = sum(word not in explained and word not in _KNOWN for word in words)
    is_eval = bool(_EVAL.intersection(words) or _EVAL_FIRST.search(key))
    if is_eval and signal != "reward":
        return None
    smoothed = 2 if _SMOOTHED.intersection(words) else 0
    # "reward" is the mean of a step; "avg_reward" next to it often that of the last 100 episodes
    is_plain = len(words) == 1
    statistic = smoothed + (not (is_plain or _MEAN.intersection(words)))
    rank = (int(is_eval), int(strange > 0), quality, strange, statistic)
    is_of_critic = signal == "loss" and quality == _LAST_LOSS
    is_clear = not (strange or is_eval or smoothed or is_of_critic)
    return Meaning(signal, is_eval, is_clear, rank)


def words_of(key: str) -> list[str]:
    """The words of a key in lower case; ``meanReward`` has two."""
    words: list[str] = []
    for word in _WORD.findall(key):
        lowered = word.lower()
        words.extend(_JOINED.get(lowered, (lowered,)))
    return words


def is_curriculum_stage(key: str) -> bool:
    """Whether this is the number of a stage, as in ``curriculum/stage`` or ``difficulty_level``.

    >>> is_curriculum_stage("train/curriculum_stage"), is_curriculum_stage("time/stage")
    (True, False)
    """
    words = set(words_of(key)) if len(key) <= _MAX_KEY_CHARS else set()
    is_named = words & _CURRICULUM and words & _STAGE
    return bool(is_named) and not words - (_CURRICULUM | _STAGE | _PLACES)


def is_eval_word(word: str) -> bool:
    """Whether this word says that values are those of held-out data."""
    return word.lower() in _EVAL | {"valid", "test", "dev"}


_KNOWN = _PLACES | _MEAN | _EVAL | _SMOOTHED

# of a value network: says little of the policy
_LAST_LOSS = 2
_Found = tuple[str, int, frozenset[str]]


def _signal(words: frozenset[str]) -> _Found | None:
    """(signal, quality of the words, the words that it is read from)."""
    rules = (_kl, _grad_norm, _truncation, _clip_fraction, _entropy, _loss, _length, _reward)
    for rule in rules:
        found = rule(words)
        if found is not None:
            others = (words & _OTHER_QUANTITIES) - found[2]
            return None if others else found
    return None


def _kl(words: frozenset[str]) -> _Found | None:
    kl = words & {"kl", "approxkl"}
    if not kl:
        return None
    quality = int("loss" in words)
    variants = _set("div divergence k v 1 2 3 full estimate est nats") | kl
    if words & _KL_OF_ENGINES or {"sample", "train"} <= words or {"rollout", "train"} <= words:
        # tinker's v1 and the k1 estimator are the mean of the difference; the others are not
        later = int(bool(words & {"2", "3"}))
        return "mismatch_kl", later, variants | _KL_OF_ENGINES
    if words & _KL_OF_REFERENCE or not words & (_KL_OF_UPDATE | {"approxkl"}):
        return "ref_kl", quality, variants | _KL_OF_REFERENCE
    return "policy_kl", quality, variants | _KL_OF_UPDATE


def _grad_norm(words: frozenset[str]) -> _Found | None:
    if not (words & _GRAD and words & _NORM):
        return None
    if words & (_VALUE_NET | {"clip"}):
        return None
    return "grad_norm", int(not words & _POLICY), _GRAD | _NORM | _POLICY | {"total"}


def _truncation(words: frozenset[str]) -> _Found | None:
    is_cut = bool(words & _TRUNCATED)
    is_at_limit = words & _CLIP and words & (_LENGTH | _RESPONSE)
    if not (is_cut or is_at_limit):
        return None
    if words & _LENGTH and not words & _SHARE:
        return None
    explained = _TRUNCATED | _CLIP | _LENGTH | _RESPONSE | _SHARE | _TOKENS
    return "truncation", int(not words & _SHARE), explained


def _clip_fraction(words: frozenset[str]) -> _Found | None:
    if not (words & _CLIP and words & _SHARE) or words & (_VALUE_NET | _GRAD):
        return None
    return "clip_fraction", 0, _CLIP | _SHARE | _POLICY | {"token", "tokens"}


def _entropy(words: frozenset[str]) -> _Found | None:
    if not words & {"entropy", "ent", "entropies"}:
        return None
    quality = int("loss" in words)
    return "entropy", quality, frozenset({"entropy", "ent", "entropies"}) | _POLICY


def _loss(words: frozenset[str]) -> _Found | None:
    if not words & {"loss", "losses"}:
        return None
    quality = _LAST_LOSS if words & _VALUE_NET else int(not words & _POLICY)
    return "loss", quality, _POLICY | _VALUE_NET | {"loss", "losses", "total"}


def _length(words: frozenset[str]) -> _Found | None:
    if words & (_PROMPT | _REWARD_WORDS[0] | _REWARD_WORDS[3]):
        return None
    if words & _LENGTH:
        quality = 0 if words & _RESPONSE else 1 if words & _SEQUENCE else 2
    elif words & _TOKENS and words & _RESPONSE:
        if words & {"total", "cumulative", "throughput", "seen"}:
            return None
        quality = 1
    else:
        return None
    return "response_length", quality, _LENGTH | _TOKENS | _RESPONSE | _SEQUENCE | {"turn"}


def _reward(words: frozenset[str]) -> _Found | None:
    if words & (_GRAD | _NORM | _LENGTH | _TOKENS | _VALUE_NET - {"value", "values", "critic"}):
        return None
    for quality, names in enumerate(_REWARD_WORDS):
        if words & names:
            return "reward", quality, names | _SHARE
    return None


def keys_by_signal(keys: Iterable[str]) -> dict[str, list[str]]:
    """Signal -> the keys that mean it, best first; of equally good ones the shorter key first."""
    found: dict[str, list[tuple[tuple[int, ...], int, str]]] = {}
    for key in keys:
        meaning = meaning_of(key)
        if meaning is not None:
            found.setdefault(meaning.signal, []).append((meaning.rank, len(key), key))
    return {signal: [key for _, _, key in sorted(ranked)] for signal, ranked in found.items()}
