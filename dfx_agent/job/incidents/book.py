"""Incidents of one run: an incident joins the verdicts and alerts on one problem.

Judges make a new verdict at every reading, and an alert has its own start time. Neither says when
the problem began, so the book stores it:

- An incident begins at the event time that was known when it was opened.
- An earlier event replaces the start time of an alert. For a hang or a divergence it also replaces
  a later event.
- An ended incident is continued if the problem is found again with a start before that end.
- An ended incident is also continued if the problem starts again within two minutes, and its judge
  had too little evidence to clear it.

Ended incidents stay in ``past``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha1
from typing import NamedTuple

from pydantic import FiniteFloat

from dfx_agent.base.text import full_sentence, headline, joined
from dfx_agent.catalogue.alerts.declared.progress import LONG_WAIT
from dfx_agent.catalogue.alerts.samples import REWARD_IMPROVING
from dfx_agent.job.incidents import sentences
from dfx_agent.job.incidents.past import PastIncidents
from dfx_agent.job.incidents.words import (
    action_of,
    cost_of,
    lasting_seconds,
    origin_of,
    runbook_of,
    sentence_of,
)
from dfx_agent.snapshot import (
    AlertRow,
    Incident,
    IncidentSeverity,
    IncidentState,
    SignalState,
    Verdict,
)

# after a previous agent last saw the incident; longer than the `for` time of every alert
RESUMED_SECONDS = 720.0

# after its judge became unsure, a problem found again within this time is the same incident
UNSURE_SECONDS = 120.0

_CLOCK_SECONDS = 1.0  # two agents read the same timestamp slightly differently
_EVALUATED_SECONDS = 15.0  # alerts are evaluated every 5 s, on a loaded machine later
_NUM_ENDED = 32
# kinds with one incident per role at a time, whatever ranks the verdict names
_ONE_OF_ROLE = frozenset({"hang", "divergence"})
# kinds whose verdict names the step of the affected rank; other ranks may be ahead
_OF_ONE_STEP = frozenset({"hang", "crash", "divergence", "memory"})
# kinds with separate incidents by cause: one rank can leak host memory and fill its device
_BY_CAUSE = frozenset({"memory", "data"})
_MILD_KINDS = frozenset({"straggler", "memory"})
_SEVERITIES: tuple[IncidentSeverity, ...] = ("critical", "warning", "info")


@dataclass(frozen=True)
class _Subject:
    """One current problem: a verdict, alerts, or both.

    ``unsure``: a verdict without a finding, on the same problem as an alert; it has the stacks.
    ``is_clear``: the verdicts of this kind are clear, only an alert still fires.
    """

    kind: str
    verdict: Verdict | None
    alerts: tuple[AlertRow, ...]
    unsure: Verdict | None = None
    is_clear: bool = False

    @property
    def role(self) -> str:
        return self.verdict.role if self.verdict else ""

    @property
    def cause(self) -> str:
        return self.verdict.cause if self.verdict else ""

    @property
    def ranks(self) -> tuple[str, ...]:
        return self.verdict.ranks if self.verdict else ()


@dataclass
class TrackedIncident:
    """Identity and start of an incident. ``seen_seconds``: when it was last reported.

    ``summary`` comes from the verdict; an alert may outlast the verdict. ``is_resumed``: a previous
    agent reported the incident, this agent has not yet. ``is_unsure``: no verdict or alert reports
    the incident now, but its judge had too little evidence to clear it.
    """

    id: str
    kind: str
    role: str
    ranks: tuple[str, ...]
    cause: str
    since_seconds: FiniteFloat
    step: int | None
    seen_seconds: FiniteFloat
    summary: str = ""
    is_unsure: bool = False
    is_event: bool = True  # the start is an event time, not the start of an alert
    is_of_verdict: bool = True  # the start is from a verdict, not from symptoms
    is_resumed: bool = field(default=False, compare=False)
    due_seconds: float = field(default=0.0, compare=False)  # end of the wait to see it again

    def is_continued_by(self, begin: _Begin) -> bool:
        """Whether a matching problem with this start continues this incident."""
        until_seconds = self.seen_seconds + (UNSURE_SECONDS if self.is_unsure else 0.0)
        return begin.since_seconds <= until_seconds or (self.is_resumed and not begin.is_event)

    def see(self, subject: _Subject, begin: _Begin, now_seconds: float) -> None:
        """Update the incident: it is reported now, with this start."""
        if self._gives_way_to(begin):
            self.since_seconds, self.step, self.is_event, self.is_of_verdict = begin
        self.role, self.ranks = subject.role or self.role, subject.ranks or self.ranks
        self.seen_seconds = now_seconds
        self.is_resumed = self.is_unsure = False

    def _gives_way_to(self, begin: _Begin) -> bool:
        """Whether this start replaces the stored one.

        An earlier event replaces the start of an alert. For a hang or divergence it also replaces
        a later event, because the summary says since when. In a divergence the verdict's start
        wins.
        """
        if self.kind == "divergence" and begin.is_of_verdict != self.is_of_verdict:
            return begin.is_of_verdict
        is_open = not self.is_event or self.kind in _ONE_OF_ROLE
        is_earlier = begin.since_seconds < self.since_seconds - _CLOCK_SECONDS
        return begin.is_event and is_open and is_earlier

    def miss(self, verdicts: Iterable[Verdict], *, is_first: bool) -> None:
        """Update an incident that is not reported now. ``is_first``: the reading before did."""
        states = {v.state for v in verdicts if v.kind == self.kind and self.role in {v.role, ""}}
        if states:
            was_open = is_first or self.is_unsure or self.is_resumed
            self.is_unsure = was_open and states == {"insufficient evidence"}

    def is_about(self, subject: _Subject) -> bool:
        roles = {self.role, subject.role}
        if self.kind != subject.kind or (len(roles) > 1 and "" not in roles):
            return False
        if self.kind in _BY_CAUSE and len({self.cause, subject.cause, ""}) > 2:
            return False
        if self.kind in _ONE_OF_ROLE or not (self.ranks and subject.ranks):
            return True
        return not set(self.ranks).isdisjoint(subject.ranks)


class _Begin(NamedTuple):
    """Start of a problem. ``is_event``: an event time, not the time of the first report."""

    since_seconds: float
    step: int | None
    is_event: bool
    is_of_verdict: bool


class IncidentBook:
    """Open and recently ended incidents of one run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._open: list[TrackedIncident] = []
        self._ended: list[TrackedIncident] = []
        self.past = PastIncidents()

    def incidents_to_store(self) -> tuple[TrackedIncident, ...]:
        """Incidents to hand to the next agent: open ones, and ended ones that may be continued."""
        return *(e for e in self._ended if e.is_resumed or e.is_unsure), *self._open

    def resume(self, stored: Iterable[TrackedIncident], now_seconds: float) -> None:
        """Add open incidents of a previous agent; call this before the first ``observe``."""
        for entry in stored:
            due = now_seconds + lasting_seconds(entry.kind) + _EVALUATED_SECONDS
            self._ended.append(replace(entry, is_resumed=True, due_seconds=due))

    def awaited(self, now_seconds: float) -> str:
        """Sentence on resumed incidents that are not judged again yet; "" if there are none."""
        waiting = [e for e in self._ended if e.is_resumed and now_seconds < e.due_seconds]
        found = joined(entry.summary or entry.kind for entry in waiting)
        return sentences.NOT_JUDGED_AGAIN(found=found) if found else ""

    def observe(
        self,
        verdicts: Iterable[Verdict],
        alerts: Sequence[AlertRow],
        signals: SignalState | None,
        steps: StepTimes,
        now_seconds: float,
    ) -> tuple[Incident, ...]:
        """All current incidents, sorted by severity, then oldest first."""
        for entry in self._ended:
            if now_seconds > entry.seen_seconds + RESUMED_SECONDS:
                entry.is_resumed = entry.is_unsure = False
        verdicts = tuple(verdicts)
        found = [verdict for verdict in verdicts if verdict.state == "found"]
        opened: list[TrackedIncident] = []
        incidents: list[Incident] = []
        for subject in _subjects(found, verdicts, alerts):
            begin = _begin(subject, signals, steps, now_seconds)
            entry = self._entry(subject, begin, opened)
            entry.see(subject, begin, now_seconds)
            opened.append(entry)
            incidents.append(_incident(subject, entry))
        ended = [entry for entry in self._open if entry not in opened]
        self._ended = [*(e for e in self._ended if e not in opened), *ended][-_NUM_ENDED:]
        self._open = opened
        for entry in self._ended:
            entry.miss(verdicts, is_first=entry in ended)
        self.past.see(incidents, now_seconds)
        return tuple(sorted(incidents, key=_worst_first))

    def _entry(
        self, subject: _Subject, begin: _Begin, matched: Collection[TrackedIncident]
    ) -> TrackedIncident:
        """The incident of this problem: an open one, an ended one to continue, or a new one."""
        for entry in self._open:
            if entry not in matched and entry.is_about(subject):
                return entry
        for entry in reversed(self._ended):
            is_continued = entry.is_about(subject) and entry.is_continued_by(begin)
            if entry not in matched and is_continued:
                return entry
        since = begin.since_seconds
        name = f"{self._run}\n{subject.kind}\n{subject.role}\n{subject.ranks}\n{since:.3f}"
        key = sha1(name.encode(), usedforsecurity=False).hexdigest()[:10]
        return TrackedIncident(
            f"{subject.kind}-{key}", subject.kind, subject.role, subject.ranks, subject.cause,
            since, begin.step, since, is_event=begin.is_event, is_of_verdict=begin.is_of_verdict,
        )  # fmt: skip


@dataclass(frozen=True)
class StepTimes:
    """Start times of the stored steps of a run: (role, step, Unix seconds)."""

    begins: tuple[tuple[str, int, float], ...] = ()

    def begin_of(self, role: str, step: int) -> float | None:
        """Earliest start of ``step`` in ``role``; in any role if ``role`` has no such step."""
        begins = [(r, seconds) for r, number, seconds in self.begins if number == step]
        own = [seconds for r, seconds in begins if r == role]
        return min(own or [seconds for _, seconds in begins], default=None)

    def step_at(self, role: str, seconds: float) -> int | None:
        """The step of ``role`` at this Unix time; None before its first stored step."""
        before = [(at, number) for r, number, at in self.begins if r == role and at <= seconds]
        return max(before)[1] if before else None


def _subjects(
    found: Sequence[Verdict], verdicts: Sequence[Verdict], alerts: Sequence[AlertRow]
) -> list[_Subject]:
    """Each finding with its alerts, then the other alerts grouped by verdict kind or by name."""
    subjects = [
        _Subject(v.kind, v, tuple(row for row in alerts if row.verdict == v.kind)) for v in found
    ]
    found_kinds = {verdict.kind for verdict in found}
    others: dict[str, list[AlertRow]] = {}
    for row in alerts:
        if row.verdict not in found_kinds and not (row.is_inhibited and not row.verdict):
            others.setdefault(row.verdict or row.alert, []).append(row)
    unsure: dict[str, Verdict] = {
        v.kind: v for v in verdicts if v.state != "found" and v.cause == LONG_WAIT
    }
    states: dict[str, set[str]] = {}
    for verdict in verdicts:
        states.setdefault(verdict.kind, set()).add(verdict.state)
    clear = {kind for kind, states_of_kind in states.items() if states_of_kind == {"clear"}}
    return [
        *subjects,
        *(
            _Subject(kind, None, tuple(rows), unsure.get(kind), is_clear=kind in clear)
            for kind, rows in others.items()
        ),
    ]


def _begin(
    subject: _Subject, signals: SignalState | None, steps: StepTimes, now_seconds: float
) -> _Begin:
    """The start of a problem: an event time if one is known."""
    verdict = subject.verdict
    if verdict is not None and verdict.since_seconds is not None:
        since = verdict.since_seconds
        # these verdicts name the step of the affected rank; other ranks may be steps ahead
        has_own_step = verdict.kind in _OF_ONE_STEP and verdict.step is not None
        step = verdict.step if has_own_step else steps.step_at(verdict.role, since)
        return _Begin(since, step, is_event=True, is_of_verdict=True)
    onset = _onset_step(subject, signals) if verdict is None else verdict.step
    first = min((r.since_step for r in subject.alerts if r.since_step is not None), default=None)
    step = first if onset is None and verdict is None else onset
    begin = None if step is None else steps.begin_of(subject.role, step)
    seen = min((row.since_seconds for row in subject.alerts), default=now_seconds)
    since = seen if begin is None else begin
    # a divergence has a fixed onset step; problems that are found again in every step do not
    is_event = subject.kind == "divergence" and onset is not None and begin is not None
    return _Begin(since, step, is_event, is_of_verdict=verdict is not None)


def _onset_step(subject: _Subject, signals: SignalState | None) -> int | None:
    """First onset step of the active symptoms, for a divergence that only alerts report."""
    if subject.kind != "divergence" or signals is None:
        return None
    onsets = [row.onset_step for row in signals.symptoms
              if row.is_active and row.symptom != REWARD_IMPROVING]  # fmt: skip
    return min((step for step in onsets if step is not None), default=None)


def _incident(subject: _Subject, entry: TrackedIncident) -> Incident:
    verdict = subject.verdict
    loudest = min(subject.alerts, key=_alert_severity, default=None)
    severity, about = _severity(subject), verdict or subject.unsure
    if verdict is not None:
        entry.summary = verdict.summary
    elif subject.unsure is not None:
        entry.summary = subject.unsure.summary
    summary = entry.summary or (loudest.summary if loudest else "")
    cause = verdict.cause if verdict else ""
    lost_seconds = verdict.lost_seconds if verdict else None
    alert = loudest.alert if loudest else ""
    cost = cost_of(subject.kind, cause, lost_seconds, alert)
    action = (verdict.action if verdict else "") or action_of(subject.kind, cause, alert)
    if subject.is_clear and subject.unsure is None and entry.summary:  # a verdict found it before
        cost, action = sentences.NOT_FOUND_ANY_MORE, ""
    conclusion = cost, origin_of(subject.kind, cause), action
    lines = [line for row in subject.alerts for line in row.lines] if not verdict else []
    return Incident(
        id=entry.id,
        kind=subject.kind,
        state=_state(severity, is_verdict=verdict is not None),
        severity=severity,
        role=entry.role,
        ranks=subject.ranks or tuple(entry.ranks),
        stage=verdict.stage if verdict else "",
        cause=cause,
        since_seconds=entry.since_seconds,
        step=entry.step,
        lost_seconds=lost_seconds,
        summary=summary,
        cost=cost,
        action=action,
        sentence=sentence_of(summary, lines, entry.since_seconds, entry.step, conclusion),
        alerts=tuple(dict.fromkeys(row.alert for row in subject.alerts)),
        evidence=(*(about.evidence if about else ()), *dict.fromkeys(lines)),
        headline=headline(full_sentence(summary)),
        runbook=runbook_of(subject.kind, cause, alert),
    )


def _state(severity: IncidentSeverity, *, is_verdict: bool) -> IncidentState:
    if is_verdict or severity == "critical":
        return "found"
    return "noted" if severity == "info" else "warning"


def _severity(subject: _Subject) -> IncidentSeverity:
    severities = [_alert_severity(row) for row in subject.alerts]
    if subject.verdict is not None:
        severities.append(1 if subject.kind in _MILD_KINDS else 0)
    return _SEVERITIES[min(severities)]


def _alert_severity(row: AlertRow) -> int:
    return next((i for i, name in enumerate(_SEVERITIES) if name == row.severity), 2)


def _worst_first(incident: Incident) -> tuple[bool, int, float]:
    is_mild = incident.state != "found"
    return is_mild, _SEVERITIES.index(incident.severity), incident.since_seconds
