"""Merges what the processes of a run report for one step into one value per signal.

Values of several ranks are merged. If several roles report a metric, or both the framework and a
hook of the guest, one of them is chosen. The choice changes only if it stops reporting; then the
baseline is dropped, so that a baseline never mixes two origins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from dfx_agent.catalogue.native import OWN_PREFIX
from dfx_agent.catalogue.native.signal_sources import Source
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.judge.divergence.inputs import SavedSource, SignalInputs, StickySource
from dfx_agent.judge.divergence.saved_state import FORMAT_2, SavedState
from dfx_agent.judge.divergence.symptoms import StepSignals

# roles that train the policy or log for it, best first
_POLICY_ROLES = ("driver", "orchestrator", "trainer", "learner", "actor")
# roles whose gradient norms and losses say nothing about the policy
_OTHER_MODELS = frozenset({"critic", "ref"})


class Origin(NamedTuple):
    """Role that reports a metric, and how."""

    role: str
    is_guest: bool
    """Whether a hook of the guest reports the metric, not the framework."""

    @classmethod
    def from_key(cls, role: str, key: str) -> Origin:
        return cls(role, key.startswith(OWN_PREFIX))


class StepValues:
    """Values of one step by source, origin and rank. A later value of a rank replaces the first."""

    def __init__(self) -> None:
        self.latest_seconds = 0.0
        # time of the step; None for a log, which has only the time of its reading
        self.event_seconds: float | None = None
        self._by_source: dict[Source, dict[Origin, dict[str, float]]] = {}

    def add(self, source: Source, origin: Origin, rank: str, value: float, seconds: float) -> None:
        self._by_source.setdefault(source, {}).setdefault(origin, {})[rank] = value
        self.latest_seconds = max(self.latest_seconds, seconds)
        if origin.role != LOG_ROLE:
            self.event_seconds = self.latest_seconds

    def origins(self) -> Iterator[tuple[Source, set[Origin]]]:
        for source, by_origin in self._by_source.items():
            yield source, set(by_origin)

    def has(self, source: Source, origin: Origin) -> bool:
        return origin in self._by_source.get(source, {})

    def merged(self, source: Source, origin: Origin) -> float:
        """The value over all ranks: the highest maximum, the lowest minimum, else the mean."""
        values = list(self._by_source[source][origin].values())
        if any(map(math.isnan, values)):
            return math.nan
        stat = dict(source[1]).get("stat")
        if stat in {"max", "min"}:
            return max(values) if stat == "max" else min(values)
        return sum(values) / len(values)


@dataclass(frozen=True)
class SavedOrigin(SavedState):
    """Saved choice: the origin that is used for one metric."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    role: str
    is_guest: bool


@dataclass(frozen=True)
class SavedChoice(SavedState):
    """Saved state of a ``Choice``."""

    inputs: tuple[Annotated[SavedSource, FORMAT_2], ...]
    origins: tuple[Annotated[SavedOrigin, FORMAT_2], ...]


class Choice:
    """Chooses the origin of each metric and the metric of each signal, once per run."""

    def __init__(self) -> None:
        self._inputs = SignalInputs()
        self._origins: dict[Source, StickySource[Origin]] = {}
        self._expected: set[tuple[Source, Origin]] = set()

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the chosen origins, the one with most metrics first."""
        origins = [origin.chosen for origin in self._origins.values()]
        roles = [origin.role for origin in origins if origin is not None]
        return tuple(sorted(set(roles), key=lambda role: (-roles.count(role), role)))

    def signals(self, step: StepValues) -> StepSignals:
        """Values of a step by signal; empty if the step reports no signal."""
        values: dict[Source, float] = {}
        others: set[Source] = set()
        self._expected = set()
        for source, origins in step.origins():
            sticky = self._origins.setdefault(source, StickySource())
            origin, is_other = sticky.choose(_best_first(origins))
            if origin is not None:
                self._expected.add((source, origin))
                values[source] = step.merged(source, origin)
            if is_other:
                others.add(source)
        found = self._inputs.signals(values)
        found.changed |= {signal for signal in found if self._inputs.source(signal) in others}
        return found

    def is_whole(self, step: StepValues) -> bool:
        """Whether the step has every metric that the step before had."""
        return all(step.has(source, origin) for source, origin in self._expected)

    def save(self) -> SavedChoice:
        chosen = [
            (source, origin.chosen)
            for source, origin in self._origins.items()
            if origin.chosen is not None
        ]
        return SavedChoice(
            self._inputs.save(),
            tuple(SavedOrigin(*source, origin.role, origin.is_guest) for source, origin in chosen),
        )

    def resume(self, saved: SavedChoice) -> None:
        self._inputs.resume(saved.inputs)
        self._origins = {
            (choice.metric, choice.labels): StickySource(Origin(choice.role, choice.is_guest))
            for choice in saved.origins
        }


def _best_first(origins: Iterable[Origin]) -> list[Origin]:
    usable = [origin for origin in origins if origin.role not in _OTHER_MODELS]
    return sorted(usable, key=_preference)


def _preference(origin: Origin) -> tuple[bool, int, str]:
    """Sort key: the framework before a hook of the guest, then the role that trains the policy."""
    is_known = origin.role in _POLICY_ROLES
    priority = _POLICY_ROLES.index(origin.role) if is_known else len(_POLICY_ROLES)
    return origin.is_guest, priority, origin.role
