"""Conclusions about a run as Prometheus families: its state, incidents and verdicts."""

from __future__ import annotations

from collections.abc import Iterable

from dfx_agent.catalogue import verdicts
from dfx_agent.exporters.prometheus.ranks import Labels, Page
from dfx_agent.snapshot import Incident, RunRow, Verdict
from dfx_agent.snapshot.verdict import NO_STAGE

# kinds of verdicts whose ranks may be in a stage
_OF_A_STAGE = frozenset({"hang", "crash", "straggler"})


def add_verdicts(page: Page, run: RunRow, node: str) -> None:
    """``node``: where the agent runs that concludes it."""
    key = run.run, node
    page.add(verdicts.RUN_STATE, (*key, run.standing.state), 1)
    for incident in run.incidents:
        _add_incident(page, key, incident)
    _add_states(page, key, run.verdicts)
    _add_found(page, key, run.verdicts)


def _add_incident(page: Page, key: Labels, row: Incident) -> None:
    for rank in row.ranks or ("",):
        labels = *key, row.role, row.kind, row.state, row.severity, rank, row.id
        page.add(verdicts.INCIDENT_BEGIN, labels, row.since_seconds)
        if row.step is not None:
            page.add(verdicts.INCIDENT_STEP, labels, row.step)


def _add_states(page: Page, key: Labels, rows: Iterable[Verdict]) -> None:
    """Write a series once if several verdicts share it."""
    unsure = "insufficient evidence"
    states = [
        (*key, row.role, row.kind, row.state, row.cause if row.state == unsure else "")
        for row in rows
    ]
    for labels in dict.fromkeys(states):
        page.add(verdicts.VERDICT_STATE, labels, 1)


def _stage(row: Verdict) -> str:
    """Text for a sentence: a rank outside all stages is not in "idle"."""
    is_outside = row.kind in _OF_A_STAGE and row.stage in {"", "idle"}
    return NO_STAGE if is_outside else row.stage


def _add_found(page: Page, key: Labels, rows: Iterable[Verdict]) -> None:
    """Largest lost time per rank over the verdicts."""
    active: dict[Labels, None] = {}
    lost: dict[Labels, float] = {}
    for row in rows:
        for rank in (row.ranks or ("",)) if row.state == "found" else ():
            blame = *key, row.role, row.kind, row.cause, _stage(row), rank
            active[blame] = None
            if row.kind == "straggler" and row.lost_seconds is not None:
                blamed = *key, row.role, rank
                lost[blamed] = max(lost.get(blamed, 0.0), row.lost_seconds)
    for labels in active:
        page.add(verdicts.VERDICT_ACTIVE, labels, 1)
    for labels, seconds in lost.items():
        page.add(verdicts.STRAGGLER_LOST_SECONDS, labels, seconds)
