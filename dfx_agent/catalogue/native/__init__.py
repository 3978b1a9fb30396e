"""Native names of each framework, one YAML file each: canonical metric -> native names.

A native name is a string, or a mapping with ``n`` and, where needed, ``l`` (fixed labels) and
``scale`` (factor native -> canonical). ``re:`` marks a regular expression that must match the whole
key; its named groups become labels. Exact names win over expressions, and of two expressions the
first. Several keys may mean one series (an older name, the guest's own hook): the order of the file
is their priority, and the guest's own come last. ``include: slime`` adds the names of another file
behind the file's own, for a framework that is built on it.

The guest forwards keys as they are; only the agent reads these files, for live runs and for log
files alike. Our own keys are known under every framework: the guest's hooks send "torch/..." and
"signal/..." (torch.yaml), a pipeline of the user's own "pipeline/..." (pipeline.yaml). A framework
without a file gets the names on which all files agree, but no unit: what a stranger's key is
measured in is known only where the key says it (``_ms``, ``timing_s/``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import yaml

# keys of the guest's own hooks begin so
OWN_PREFIX = "torch/"
# keys that a user named with --map; the rest is a signal
MAPPED_PREFIX = "signal/"
# keys of a pipeline of the user's own, in our words
PIPELINE_PREFIX = "pipeline/"
_TORCH = "torch"
# in a file: the framework whose names this one has too, behind its own
_INCLUDE = "include"
# files of no framework
_OWN = ("pipeline", _TORCH)
_OWN_PREFIXES = (OWN_PREFIX, MAPPED_PREFIX, PIPELINE_PREFIX)
# what trackers put in front of a framework's key, and ROLL's reducer behind it
_TRACKER_PREFIX = "train/"
_REDUCER = "@"
# statistics as the catalogue spells them
_STATS = {"avg": "mean", "med": "p50", "median": "p50"} | {f"tp{n}": f"p{n}" for n in (50, 95, 99)}
_MAX_KNOWN = 20_000
# the C parser is there almost everywhere and takes a seventh of the time
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LAST = 1 << 30
_NOT_ASKED: Any = object()
# units that a key may say, with the factor to the base unit; seconds are also a framework's prefix
_SAID = {
    "seconds": (
        (re.compile(r".*_ms(/.*)?"), 1e-3),
        (re.compile(r"(timing_s/|.*_s(ec|econds?)?(/|$)).*"), 1.0),
    ),
    "bytes": ((re.compile(r".*_bytes(/.*)?"), 1.0),),
}
# an expression that begins with a wildcard, or has nothing else, fits the keys of strangers
_IS_SPECIFIC = re.compile(r"[A-Za-z_]+/(?!\(\?P<\w+>(\.|\[\^/\])\+\)$)")


@dataclass(frozen=True)
class Native:
    """A native key in canonical terms: ``value = scale * native value``."""

    metric: str
    labels: Mapping[str, str]
    scale: float = 1.0


@dataclass(frozen=True)
class NativeEntry:
    """One native name of a file; ``pattern`` is None for an exact name."""

    name: str
    pattern: re.Pattern[str] | None
    native: Native

    def match(self, key: str) -> Native | None:
        """The key in canonical terms; None when this is not its entry."""
        if self.pattern is None:
            return self.native if key == self.name else None
        match = self.pattern.fullmatch(key)
        if match is None:
            return None
        labels = {**self.native.labels, **match.groupdict("")}
        if "stat" in labels:
            labels["stat"] = _STATS.get(labels["stat"], labels["stat"])
        return Native(self.native.metric, labels, self.native.scale)


class NativeNames:
    """Look-up for one framework; answers are remembered, keys come from a job and repeat."""

    def __init__(self, entries: Iterable[NativeEntry], own: NativeNames | None = None) -> None:
        self._entries = list(entries)
        self._own = own
        self._exact: dict[str, tuple[int, Native]] = {}
        self._patterns: list[tuple[int, NativeEntry]] = []
        for i, entry in enumerate(self._entries):
            if entry.pattern is None:
                self._exact.setdefault(entry.name, (i, entry.native))
            else:
                self._patterns.append((i, entry))
        self._cache: dict[str, tuple[int, Native] | None] = {}

    def find(self, key: str) -> Native | None:
        """None for a key that no mapping knows."""
        found = self._found(key)
        return found[1] if found else None

    def priority(self, key: str) -> int:
        """Which of several keys of one series counts: the smallest. Unknown keys come last."""
        found = self._found(key)
        return found[0] if found else _LAST

    def spelling(self, key: str) -> str | None:
        """The key as the framework writes it, without what a tracker added; None if unknown."""
        return next((k for k in _spellings(key) if self.exactly(k)), None)

    def has_name(self, key: str) -> bool:
        """Whether the framework names exactly this key; an expression may fit other keys too."""
        return key in self._exact

    def entries(self) -> list[Native]:
        """Every mapping; labels that come from a named group have the value ""."""
        own = self._own.entries() if self._own else []
        return own + self.entries_of_framework()

    def entries_of_framework(self) -> list[Native]:
        """Every mapping of the framework's own file."""
        return [
            Native(n.metric, {**n.labels, **dict.fromkeys(p.groupindex, "")}, n.scale) if p else n
            for n, p in ((entry.native, entry.pattern) for entry in self._entries)
        ]

    def _found(self, key: str) -> tuple[int, Native] | None:
        found: tuple[int, Native] | None = self._cache.get(key, _NOT_ASKED)
        if found is _NOT_ASKED:
            if len(self._cache) >= _MAX_KNOWN:
                self._cache.clear()  # another thread may be between two lines here
            found = next((f for f in map(self.exactly, _spellings(key)) if f), None)
            self._cache[key] = found
        return found

    def exactly(self, key: str) -> tuple[int, Native] | None:
        """The key with its place in the file, without any other spelling tried."""
        if self._own and is_own(key):
            found = self._own.exactly(key)
            return found and (found[0] + len(self._entries), found[1])
        return self._in_file(key)

    def _in_file(self, key: str) -> tuple[int, Native] | None:
        exact = self._exact.get(key)
        if exact:
            return exact
        for i, entry in self._patterns:
            native = entry.match(key)
            if native:
                return i, native
        return None


class AgreedNames(NativeNames):
    """Names of a job whose framework is not known: those all files agree on."""

    def __init__(self, by_file: list[list[NativeEntry]], own: NativeNames) -> None:
        super().__init__([entry for entries in by_file for entry in entries], own)
        self._exact_by_file = [NativeNames(e for e in es if not e.pattern) for es in by_file]
        self._patterns_by_file = [
            NativeNames(e for e in es if e.pattern and _IS_SPECIFIC.match(e.pattern.pattern))
            for es in by_file
        ]

    def _in_file(self, key: str) -> tuple[int, Native] | None:
        for names in (self._exact_by_file, self._patterns_by_file):
            found = [f for f in (n.exactly(key) for n in names) if f]
            if found:
                first = found[0]
                agree = all(f[1] == first[1] for f in found)
                return first if agree and _has_sure_unit(key, first[1]) else None
        return None


def _has_sure_unit(key: str, native: Native) -> bool:
    """Whether a key of nobody we know is measured in what this mapping takes it for."""
    from dfx_agent.catalogue.spec import by_name  # noqa: PLC0415 (the catalogue reads these files)

    metric = by_name().get(native.metric)
    unit = metric.unit if metric else ""
    if unit in _SAID:
        scale = next((candidate for words, candidate in _SAID[unit] if words.fullmatch(key)), None)
        return scale == native.scale
    return abs(native.scale) == 1.0


@lru_cache(maxsize=256)
def load(framework: str) -> NativeNames:
    """Names of one framework and the guest's own; what all agree on for one without a file."""
    name = framework.replace("-", "_").lower()
    if name not in frameworks():
        return _agreed()
    return NativeNames(_read(name), _own_names())


def is_own(key: str) -> bool:
    """Whether this key is one of ours, whatever the framework."""
    return key.startswith(_OWN_PREFIXES)


@cache
def _agreed() -> NativeNames:
    return AgreedNames([list(_read(name)) for name in frameworks()], _own_names())


@cache
def _own_names() -> NativeNames:
    return NativeNames(entry for name in _OWN for entry in _read(name))


@cache
def mapped_names() -> tuple[str, ...]:
    """Signals that a user may name a key for."""
    names = (entry.name for entry in _read(_TORCH) if entry.pattern is None)
    return tuple(name[len(MAPPED_PREFIX) :] for name in names if name.startswith(MAPPED_PREFIX))


@cache
def descendants() -> frozenset[str]:
    """Frameworks whose file includes the names of another."""
    texts = {name: files(__name__).joinpath(f"{name}.yaml").read_text() for name in frameworks()}
    return frozenset(name for name, text in texts.items() if f"\n{_INCLUDE}:" in text)


def frameworks() -> list[str]:
    """Frameworks that have a file here."""
    found = (p.name[:-5] for p in files(__name__).iterdir() if p.name.endswith(".yaml"))
    return sorted(name for name in found if name not in _OWN)


def _spellings(key: str) -> Iterator[str]:
    yield key
    if key.startswith(_TRACKER_PREFIX):
        yield key[len(_TRACKER_PREFIX) :]
    head, reducer, _ = key.rpartition(_REDUCER)
    if reducer:
        yield head


def _read(framework: str) -> Iterator[NativeEntry]:
    text = files(__name__).joinpath(f"{framework}.yaml").read_text()
    for metric, natives in yaml.load(text, Loader=_LOADER).items():  # noqa: S506 (it is safe)
        if metric == _INCLUDE:
            yield from _read(natives)
            continue
        for native in natives:
            yield _entry(metric, native)


def _entry(metric: str, native: str | dict[str, Any]) -> NativeEntry:
    if isinstance(native, str):
        native = {"n": native}
    name = native["n"]
    pattern = re.compile(name[3:]) if name.startswith("re:") else None
    scale = float(native.get("scale", 1.0))
    return NativeEntry(name, pattern, Native(metric, native.get("l", {}), scale))
