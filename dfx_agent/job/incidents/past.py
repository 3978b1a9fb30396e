"""Incidents that are over: the last thing that was known of each, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dfx_agent.base.text import full_sentence, joined
from dfx_agent.job.incidents import sentences
from dfx_agent.job.incidents.words import time_text
from dfx_agent.snapshot import Incident

# alerts outlast their verdicts by so much, and processes of one job end one after the other
_RUN_END_SECONDS = 30.0
# a shorter finding without an alert is treated as noise, unless it is critical
_SHORT_SECONDS = 10.0
_MAX_PAST = 32
_STATES = ("found", "warning", "noted")


class PastIncidents:
    """Ended incidents of one run. Call ``see`` with current ones; ``rows``: latest end first."""

    def __init__(self) -> None:
        self._worst: dict[str, Incident] = {}  # current incidents in their worst state
        self._first_seconds: dict[str, float] = {}
        self._past: dict[str, Incident] = {}

    def see(self, incidents: Iterable[Incident], now_seconds: float) -> None:
        """Set the current incidents; all other incidents have ended."""
        current = {incident.id: incident for incident in incidents}
        for key in self._worst.keys() - current.keys():
            self._end(key, now_seconds)
        for key, incident in current.items():
            self._past.pop(key, None)
            self._first_seconds.setdefault(key, now_seconds)
            before = self._worst.get(key)
            if before is None or _rank(incident) <= _rank(before):
                self._worst[key] = incident

    def resume(self, past: Iterable[Incident]) -> None:
        """Add the past incidents of a previous agent."""
        self._past = {incident.id: incident for incident in past} | self._past

    def rows(self, run_end_seconds: float | None) -> tuple[Incident, ...]:
        """Ended incidents with their end; ``run_end_seconds`` is None while the run lasts."""
        rows = [_with_end(incident, run_end_seconds) for incident in self._past.values()]
        return tuple(sorted(rows, key=lambda row: -(row.end_seconds or 0.0)))

    def incidents_to_store(self) -> tuple[Incident, ...]:
        """Past incidents to hand to the next agent."""
        return tuple(self._past.values())

    def _end(self, key: str, now_seconds: float) -> None:
        incident = self._worst.pop(key)
        lasted_seconds = now_seconds - self._first_seconds.pop(key)
        is_short = lasted_seconds < _SHORT_SECONDS and not incident.alerts
        if incident.state == "noted" or (is_short and incident.severity != "critical"):
            return
        self._past[key] = replace(incident, end_seconds=now_seconds)
        for old in list(self._past)[:-_MAX_PAST]:
            del self._past[old]


def _rank(incident: Incident) -> int:
    return _STATES.index(incident.state)


def _with_end(incident: Incident, run_end_seconds: float | None) -> Incident:
    assert incident.end_seconds is not None
    is_last = run_end_seconds is not None and (
        incident.is_until_run_end or incident.end_seconds > run_end_seconds - _RUN_END_SECONDS
    )
    end_seconds = run_end_seconds if is_last and run_end_seconds else incident.end_seconds
    end = sentences.UNTIL_RUN_END if is_last else sentences.ENDED
    sentence = without_cost(incident).sentence if is_last else _without_advice(incident)
    sentence = joined([sentence, end(when=time_text(end_seconds))])
    return replace(incident, end_seconds=end_seconds, is_until_run_end=is_last, sentence=sentence)


def without_cost(incident: Incident) -> Incident:
    """The incident without its cost: in a run that has ended it delays nothing any more."""
    if incident.lost_seconds:
        return incident
    return replace(incident, cost="", sentence=_without(incident, incident.cost))


def _without_advice(incident: Incident) -> str:
    """The sentence of an incident that is over: without its impact and its action."""
    return _without(incident, incident.action, "" if incident.lost_seconds else incident.cost)


def _without(incident: Incident, *parts: str) -> str:
    text = incident.sentence
    for part in filter(None, parts):
        text = text.replace(full_sentence(part), "")
    return " ".join(text.split())
