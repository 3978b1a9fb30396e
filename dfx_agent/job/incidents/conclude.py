"""Concludes the state of a run: its current and past incidents, its end, and one standing.

Node and hub both call ``conclude``. No other code decides whether a run is clear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import gmtime, strftime

from dfx_agent.base.text import full_sentence, joined
from dfx_agent.job.incidents import sentences
from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.job.incidents.past import without_cost
from dfx_agent.job.incidents.words import time_text
from dfx_agent.snapshot import (
    UNJUDGED,
    AlertRow,
    Incident,
    RankRow,
    RunState,
    SignalState,
    Standing,
    Verdict,
)

_LIVING = frozenset({"live", "unknown"})
_EARLIER_SHOWN = 3
_FAILURES = frozenset({"crash", "hang"})


@dataclass(frozen=True)
class RunEnd:
    """The end of a run: when its last process was seen, and a sentence on how it ended.

    ``is_detached``: some processes may still run, unobserved.
    """

    seconds: float
    sentence: str
    is_detached: bool = False


@dataclass(frozen=True)
class Conclusion:
    """Fields of a ``RunRow``."""

    incidents: tuple[Incident, ...]
    past_incidents: tuple[Incident, ...]
    ending: str
    standing: Standing


@dataclass(frozen=True)
class Judged:
    """Verdicts, alerts and steps of a run now; ``alerts`` are None before their evaluation."""

    verdicts: tuple[Verdict, ...]
    alerts: Sequence[AlertRow] | None
    signals: SignalState | None
    steps: StepTimes
    ranks: Sequence[RankRow]
    has_steps: bool


def conclude(
    book: IncidentBook, run: Judged, now_seconds: float, doubts: Iterable[str] = ()
) -> Conclusion:
    """Conclusion for this run. ``doubts``: reasons why the run must not be shown as clear."""
    verdicts = run.verdicts
    incidents = book.observe(verdicts, run.alerts or (), run.signals, run.steps, now_seconds)
    has_failed = any(v.kind in _FAILURES and v.state == "found" for v in verdicts)
    end = run_end(run.ranks, run.steps, has_failed=has_failed)
    incidents = tuple(map(without_cost, incidents)) if end else incidents
    past = book.past.rows(end.seconds if end else None)
    pending = sentences.ALERTS_PENDING() if run.alerts is None else ""
    unobserved = sentences.UNOBSERVED() if end and end.is_detached else ""
    doubt = joined([unobserved, book.awaited(now_seconds), pending, *doubts])
    # a log has no times and so no closed steps, but its values are judged step by step
    has_steps = run.has_steps or run.signals is not None
    standing = standing_of(
        verdicts, incidents, has_steps=has_steps, past=past, end=end, doubt=doubt
    )
    return Conclusion(incidents, past, end.sentence if end else "", standing)


def standing_of(
    verdicts: Sequence[Verdict],
    incidents: Sequence[Incident],
    *,
    has_steps: bool,
    past: Sequence[Incident] = (),
    end: RunEnd | None = None,
    doubt: str = "",
) -> Standing:
    """The standing of the run. Without a finding or a clear verdict: insufficient evidence."""
    lasted = [incident for incident in past if incident.is_until_run_end] if end else []
    ended = end.sentence if end else ""
    for incident in (*incidents, *sorted(lasted, key=_worst_first)):  # the worst first
        if incident.state != "noted":
            return Standing(incident.state, joined([incident.sentence, ended]))
    if not verdicts:
        return Standing(UNJUDGED.state, joined([ended, UNJUDGED.reason]))
    if not has_steps:
        waits = [v.summary for v in verdicts if v.kind == "hang" and v.state != "clear"]
        none = sentences.NO_STEP if end else sentences.NO_STEP_YET
        reason = joined([ended, none(), *waits])
        return Standing("insufficient evidence", reason)
    noted = [sentences.NOTED(summary=full_sentence(row.summary)) for row in incidents]
    noted += [_earlier(incident) for incident in past[:_EARLIER_SHOWN]]
    state, judged = _without_finding(verdicts, doubt)
    return Standing(state, joined([ended, *judged, *noted]))


def _without_finding(verdicts: Sequence[Verdict], doubt: str) -> tuple[RunState, list[str]]:
    """State and sentences of a run without a finding; with ``doubt`` nothing counts as checked."""
    unsure = {f"{v.kind.capitalize()}: {v.summary}": v.kind for v in verdicts if v.state != "clear"}
    if doubt:
        return "insufficient evidence", [doubt, *unsure]
    kinds = dict.fromkeys(v.kind for v in verdicts if v.kind not in unsure.values())
    checked = sentences.NOTHING_FOUND(kinds=", ".join(kinds)) if kinds else ""
    return "insufficient evidence" if unsure else "clear", [checked, *unsure]


def run_end(
    ranks: Sequence[RankRow], steps: StepTimes, *, has_failed: bool = False
) -> RunEnd | None:
    """The end of the run; None while a process lives, and for a run without processes.

    A process that raises an exception still shuts down in order, so its state does not show the
    failure. ``has_failed``: a verdict found a crash or a hang.
    """
    guests = [rank for rank in ranks if rank.source == "guest"] or list(ranks)
    if not guests or any(rank.state in _LIVING for rank in guests):
        return None
    attempt = max(rank.attempt for rank in guests)
    latest = [rank for rank in guests if rank.attempt == attempt]
    seconds = max(rank.last_event_seconds or rank.begin_seconds for rank in latest)
    step = max((number for _, number, _ in steps.begins), default=None)
    where = "before its first step" if step is None else f"in step {step}"
    is_detached = any(rank.state == "detached" for rank in latest)
    broken = sorted({r.rank for r in latest if r.state == "died"}, key=lambda r: (len(r), r))
    if not broken:
        ended = sentences.DETACHED if is_detached else sentences.RUN_ENDED
        template = sentences.RUN_FAILED if has_failed else ended
        if template is sentences.RUN_ENDED and step is not None:
            where = f"after step {step}"
        return RunEnd(seconds, template(when=time_text(seconds), where=where), is_detached)
    sentence = sentences.RUN_BROKE_OFF(
        when=time_text(seconds), where=where, ranks=_ranks_text(broken)
    )
    return RunEnd(seconds, sentence)


def _ranks_text(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 8} more" if len(labels) > 8 else ""
    return f"rank{'s' if len(labels) > 1 else ''} {', '.join(labels[:8])}{more}"


def _earlier(incident: Incident) -> str:
    begin, end = (
        strftime("%H:%M:%S", gmtime(seconds))
        for seconds in (incident.since_seconds, incident.end_seconds or 0.0)
    )
    return sentences.EARLIER(begin=begin, end=end, summary=full_sentence(incident.summary))


def _worst_first(incident: Incident) -> tuple[bool, bool, float]:
    return incident.state != "found", incident.severity != "critical", incident.since_seconds
