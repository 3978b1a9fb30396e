"""The user's own mapping of keys: ``--map reward=train/score``, ``--map step=n``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dfx_agent.catalogue.native import MAPPED_PREFIX, mapped_names

STEP = "step"


@dataclass(frozen=True)
class KeyMap:
    """``spellings``: key of the log -> the key under which every framework knows this signal."""

    spellings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    step: str | None = None


NO_MAP = KeyMap()


def parse(words: Iterable[str]) -> KeyMap:
    """Raises ValueError for a word that is not NAME=KEY or names no signal."""
    spellings: dict[str, str] = {}
    step = None
    for word in words:
        name, is_given, key = word.partition("=")
        if not is_given or not key:
            raise ValueError(f"--map {word}: write NAME=KEY, for example reward=train/score")
        if name == STEP:
            step = key
        elif name in mapped_names():
            spellings[key] = MAPPED_PREFIX + name
        else:
            names = ", ".join((STEP, *mapped_names()))
            raise ValueError(f"--map {word}: there is no signal {name!r}; there are {names}")
    return KeyMap(spellings, step)
