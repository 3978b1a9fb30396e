"""Which framework wrote a log, and how that framework spells the keys of an export.

A tracker puts "train/" in front of a key, a CSV export writes "_" for "/", ROLL appends "@mean".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from dfx_agent.catalogue.native import (
    Native,
    NativeNames,
    descendants,
    frameworks,
    is_own,
    load,
)
from dfx_agent.catalogue.native.meaning import meaning_of, words_of

# few keys fit several frameworks: then it is the more common one
_COMMON = ("verl", "trl")
# words such as loss and return are everybody's: so many of them, and most keys, name one
_LEAST_COMMON_WORDS = 2
# trainers of no framework write keys of these words too
_EVERYBODYS_WORDS = frozenset((
    "loss", "reward", "rewards", "kl", "entropy", "grad", "norm", "learning", "rate", "lr", "epoch",
    "step", "time", "score", "accuracy", "format", "return", "returns", "value", "values",
    "advantage", "advantages", "policy", "actor", "critic", "ppo", "aux", "group", "response",
    "length", "num", "total", "tokens", "truncated", "clip", "clipped", "frac", "ratio", "mean",
    "std", "max", "min",
))  # fmt: skip
# keys of an export with more slashes are not recognised
_MAX_SLASHES = 2
_MAX_UNDERSCORES = 12
_MAX_KEY_CHARS = 200
# they hold scores of a part or of held-out data: read as the reward where there is no other
_OTHER_SCORES = frozenset({"dfx_reward_term", "dfx_val_score"})
# a framework takes any key of this form; what it is only the key says
_ANY_QUANTITY = "dfx_env_metric"
# a label that holds whatever is in front of such a name
_ANY_PLACE = "scope"


def best_framework(keys: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The framework that defines most of the keys, and its spelling of them."""
    best, spellings = "", dict[str, str]()
    theirs = [key for key in keys if not is_own(key)]
    # a framework that has all names of another comes after it: it needs a key of its own to win
    others = sorted(
        set(frameworks()) - set(_COMMON), key=lambda name: (name in descendants(), name)
    )
    for framework in (*_COMMON, *others):
        names = load(framework)
        found = {key: spelling for key in theirs if (spelling := spelling_of(key, names))}
        if len(found) > len(spellings) and _is_evidence(found, len(theirs), names):
            best, spellings = framework, found
    return best, spellings


def _is_evidence(spellings: Mapping[str, str], num_keys: int, names: NativeNames) -> bool:
    """Whether these keys are a framework's own and not words that any trainer may use."""
    for key, spelling in spellings.items():
        if "/" in key.removeprefix("train/") and names.has_name(spelling):
            return True
    return len(spellings) >= _LEAST_COMMON_WORDS and len(spellings) * 2 > num_keys


def is_of_one_framework(key: str) -> bool:
    """Whether a known key says who wrote it: it has a folder, or a word of its own."""
    name = key.removeprefix("train/")
    if "/" in name:
        return True
    return not name.startswith("eval_") and not _EVERYBODYS_WORDS.issuperset(words_of(name))


def spelling_of(key: str, names: NativeNames) -> str | None:
    return names.spelling(key) or _with_slashes(key, names)


def _with_slashes(key: str, names: NativeNames) -> str | None:
    """A key in which an export wrote underscores for slashes."""
    if "/" in key or len(key) > _MAX_KEY_CHARS:
        return None
    places = [i for i, letter in enumerate(key) if letter == "_"][:_MAX_UNDERSCORES]
    for num_slashes in range(1, _MAX_SLASHES + 1):
        for chosen in combinations(places, num_slashes):
            spelling = "".join("/" if i in chosen else c for i, c in enumerate(key))
            if names.spelling(spelling):
                return spelling
    return None


def is_known_key(key: str) -> bool:
    """Whether any framework knows this key or what an export makes of it."""
    return any(spelling_of(key, load(name)) for name in frameworks())


def may_mean_a_signal(key: str, native: Native | None) -> bool:
    """Not where the framework uses the key for something else; other scores may be the reward."""
    if native is None or native.metric == _ANY_QUANTITY or _ANY_PLACE in native.labels:
        return True
    meaning = meaning_of(key) if native.metric in _OTHER_SCORES else None
    return meaning is not None and meaning.signal == "reward"
