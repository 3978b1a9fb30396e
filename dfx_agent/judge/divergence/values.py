"""What the processes of a run reported for one step, made into one value per signal.

Several ranks report the same metric: their values are merged. Several roles may, or a framework and
the guest's own hook both: then one of them speaks for the run, the same one until it falls silent.
What was learned from it is forgotten then, so that a baseline never mixes two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from dfx_agent.catalogue.native import OWN_PREFIX
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.judge.divergence.inputs import KeptSpeaker, SignalInputs, Source, Speaker
from dfx_agent.judge.divergence.kept import FORMAT_2, Kept
from dfx_agent.judge.divergence.symptoms import StepSignals

# who trains the policy, or logs for the one who does; best first
_POLICY_ROLES = ("driver", "orchestrator", "trainer", "learner", "actor")
# their gradient norms and losses say nothing about the policy
_OTHER_MODELS = frozenset({"critic", "ref"})


class Origin(NamedTuple):
    """Who reports a metric; ``is_guest``: by a hook of the guest, not by the framework."""

    role: str
    is_guest: bool

    @classmethod
    def of(cls, role: str, key: str) -> Origin:
        return cls(role, key.startswith(OWN_PREFIX))


class StepValues:
    """One step: source -> origin -> rank -> value. A rank that reports again replaces its value.

    ``event_seconds``: when the step was; None of a log, which tells only when it was read.
    """

    def __init__(self) -> None:
        self.newest_seconds = 0.0
        self.event_seconds: float | None = None
        self._by_source: dict[Source, dict[Origin, dict[str, float]]] = {}

    def add(self, source: Source, origin: Origin, rank: str, value: float, seconds: float) -> None:
        self._by_source.setdefault(source, {}).setdefault(origin, {})[rank] = value
        self.newest_seconds = max(self.newest_seconds, seconds)
        if origin.role != LOG_ROLE:
            self.event_seconds = self.newest_seconds

    def origins(self) -> Iterator[tuple[Source, set[Origin]]]:
        for source, by_origin in self._by_source.items():
            yield source, set(by_origin)

    def has(self, source: Source, origin: Origin) -> bool:
        return origin in self._by_source.get(source, {})

    def merged(self, source: Source, origin: Origin) -> float:
        """Over ranks: the highest of maxima, the lowest of minima, else the mean."""
        values = list(self._by_source[source][origin].values())
        if any(map(math.isnan, values)):
            return math.nan
        stat = dict(source[1]).get("stat")
        if stat in {"max", "min"}:
            return max(values) if stat == "max" else min(values)
        return sum(values) / len(values)


@dataclass(frozen=True)
class KeptOrigin(Kept):
    """Who speaks for one metric."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    role: str
    is_guest: bool


@dataclass(frozen=True)
class KeptChoice(Kept):
    """What speaks for each signal, and who for each metric."""

    inputs: tuple[Annotated[KeptSpeaker, FORMAT_2], ...]
    origins: tuple[Annotated[KeptOrigin, FORMAT_2], ...]


class Choice:
    """Whose values become the signals of a run; decided once for each metric."""

    def __init__(self) -> None:
        self._inputs = SignalInputs()
        self._origins: dict[Source, Speaker[Origin]] = {}
        self._expected: set[tuple[Source, Origin]] = set()

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that the chosen values come from, the one with most of them first."""
        roles = [o.chosen.role for o in self._origins.values() if o.chosen is not None]
        return tuple(sorted(set(roles), key=lambda role: (-roles.count(role), role)))

    def signals(self, step: StepValues) -> StepSignals:
        """Signal -> value; empty when nothing of the step is a signal."""
        values: dict[Source, float] = {}
        others: set[Source] = set()
        self._expected = set()
        for source, origins in step.origins():
            speaker = self._origins.setdefault(source, Speaker())
            origin, is_other = speaker.choose(_best_first(origins))
            if origin is not None:
                self._expected.add((source, origin))
                values[source] = step.merged(source, origin)
            if is_other:
                others.add(source)
        found = self._inputs.signals(values)
        found.changed |= {signal for signal in found if self._inputs.source(signal) in others}
        return found

    def is_whole(self, step: StepValues) -> bool:
        """Whether everything is there that the step before had."""
        return all(step.has(source, origin) for source, origin in self._expected)

    def kept(self) -> KeptChoice:
        chosen = [(source, o.chosen) for source, o in self._origins.items() if o.chosen is not None]
        return KeptChoice(
            self._inputs.kept(),
            tuple(KeptOrigin(*source, origin.role, origin.is_guest) for source, origin in chosen),
        )

    def resume(self, kept: KeptChoice) -> None:
        self._inputs.resume(kept.inputs)
        self._origins = {
            (of.metric, of.labels): Speaker(Origin(of.role, of.is_guest)) for of in kept.origins
        }


def _best_first(origins: Iterable[Origin]) -> list[Origin]:
    known = [origin for origin in origins if origin.role not in _OTHER_MODELS]
    return sorted(known, key=_preference)


def _preference(origin: Origin) -> tuple[bool, int, str]:
    """The framework's own number before a hook's, then the role that trains the policy."""
    is_known = origin.role in _POLICY_ROLES
    place = _POLICY_ROLES.index(origin.role) if is_known else len(_POLICY_ROLES)
    return origin.is_guest, place, origin.role
