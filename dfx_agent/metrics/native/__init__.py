"""Native names of each framework, one YAML file each: canonical metric -> native names.

A native name is a string, or a mapping with ``n`` and, where needed, ``l`` (fixed labels) and
``scale`` (factor native -> canonical). ``re:`` marks a regular expression that must match the whole
key; its named groups become labels. Exact names win over expressions. The guest forwards keys as
they are; only the agent reads these files, for live runs and for log files alike.

The guest's own keys ("torch/...", from torch.yaml) are known under every framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

# keys of the guest's own hooks begin so
OWN_PREFIX = "torch/"
_OWN = "torch"


@dataclass(frozen=True)
class Native:
    """A native key in canonical terms: ``value = scale * native value``."""

    metric: str
    labels: Mapping[str, str]
    scale: float = 1.0


class NativeNames:
    """Look-up for one framework; answers are remembered, keys come from a job and repeat."""

    def __init__(
        self, exact: dict[str, Native], patterns: list[tuple[re.Pattern[str], Native]]
    ) -> None:
        self._exact = exact
        self._patterns = patterns
        self._known: dict[str, Native | None] = {}

    def find(self, key: str) -> Native | None:
        """None for a key that no mapping knows."""
        if key not in self._known:
            self._known[key] = self._exact.get(key) or self._match(key)
        return self._known[key]

    def entries(self) -> list[Native]:
        """Every mapping; labels that come from a named group have the value ""."""
        patterns = [
            Native(
                native.metric, {**native.labels, **dict.fromkeys(p.groupindex, "")}, native.scale
            )
            for p, native in self._patterns
        ]
        return [*self._exact.values(), *patterns]

    def _match(self, key: str) -> Native | None:
        for pattern, native in self._patterns:
            match = pattern.fullmatch(key)
            if match:
                return Native(native.metric, {**native.labels, **match.groupdict("")}, native.scale)
        return None


@cache
def load(framework: str) -> NativeNames:
    """Names of one framework and the guest's own; only those for a framework without a file."""
    exact: dict[str, Native] = {}
    patterns: list[tuple[re.Pattern[str], Native]] = []
    for name, native in (*_entries(_OWN), *_entries(framework)):
        if name.startswith("re:"):
            patterns.append((re.compile(name[3:]), native))
        else:
            exact[name] = native
    return NativeNames(exact, patterns)


def frameworks() -> list[str]:
    """Frameworks that have a file here, torch itself among them."""
    return sorted(p.name[:-5] for p in files(__name__).iterdir() if p.name.endswith(".yaml"))


def _entries(framework: str) -> Iterator[tuple[str, Native]]:
    path = files(__name__).joinpath(f"{framework}.yaml")
    if framework.isidentifier() and path.is_file():
        for metric, natives in yaml.safe_load(path.read_text()).items():
            for entry in natives:
                yield _parse(metric, entry)


def _parse(metric: str, entry: str | dict[str, Any]) -> tuple[str, Native]:
    if isinstance(entry, str):
        return entry, Native(metric, {})
    return entry["n"], Native(metric, entry.get("l", {}), float(entry.get("scale", 1.0)))
