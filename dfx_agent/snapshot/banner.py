"""The banner of a run in words: who and what, since when and at what cost, what to do.

The page draws the same lines in JavaScript (``web/static/incident_lines.js``); terminal and report
take them from here. No judgement is made here: every sentence is the agent's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dfx_agent.base.text import (
    age_text,
    capitalized,
    full_sentence,
    headline,
    rounded,
    seconds_text,
)
from dfx_agent.snapshot.bottleneck import bound_text, is_breakdown
from dfx_agent.snapshot.run import RunRow, RunVerdicts
from dfx_agent.snapshot.verdict import Incident, Verdict

BannerLevel = Literal["bad", "warn", "unsure", "note", "quiet", "good"]

_ORDER: tuple[BannerLevel, ...] = ("bad", "warn", "unsure", "note", "quiet", "good")
_LEVELS: dict[str, BannerLevel] = {"critical": "bad", "warning": "warn", "info": "note"}
_STANDING: dict[str, BannerLevel] = {"found": "bad", "warning": "warn", "clear": "good"}
_STOPS_ALL = frozenset({"hang", "crash"})
_LIVING = frozenset({"live", "unknown"})
_LEAST_HOURS = 0.05


@dataclass(frozen=True, slots=True)
class BannerLine:
    """One problem, or the state of a run without one. Texts are "" where nothing is known."""

    level: BannerLevel
    title: str
    """Who and what."""
    detail: str = ""
    """Since when, and what it costs."""
    action: str = ""
    """What to do first."""
    evidence: tuple[str, ...] = ()
    ranks: tuple[tuple[str, str], ...] = ()
    """(role, rank) of the blamed or suspected ranks."""


def banner_of(run: RunRow, now_seconds: float) -> tuple[BannerLine, ...]:
    """Lines of the run, worst first; the last one is its state where nothing is found."""
    lines = [_incident_line(run, row, now_seconds) for row in run.incidents if not _is_context(row)]
    lines += _suspicions(run, now_seconds)
    lines += [_past_line(row) for row in run.past_incidents if row.is_until_run_end]
    if run.blind is not None:
        since = _clock(run.blind.since_seconds)
        lines.append(BannerLine("bad", f"Blind since {since}", run.blind.reason))
    lines.sort(key=lambda line: _ORDER.index(line.level))
    if not any(line.level in {"bad", "warn", "unsure"} for line in lines):
        lines.append(_standing_line(run))
    return tuple(sorted(lines, key=lambda line: _ORDER.index(line.level)))


def banner_of_ended(run: RunVerdicts) -> BannerLine:
    """The state of a run that ended under an earlier agent."""
    level = _STANDING.get(run.standing.state, "quiet")
    evidence = tuple(incident.sentence for incident in run.past_incidents)
    action = next((row.action for row in run.past_incidents if row.is_until_run_end), "")
    title, detail = split_sentence(run.standing.reason)
    return BannerLine(level, title, detail, action, evidence)


def blamed_ranks(run: RunRow) -> dict[tuple[str, str], BannerLevel]:
    """(role, rank) -> "bad" or "warn", of the worst incident that blames the rank, worst first."""
    found: dict[tuple[str, str], BannerLevel] = {}
    lasting = [row for row in run.past_incidents if row.is_until_run_end]
    for severity in ("critical", "warning"):
        for incident in (*run.incidents, *lasting):
            for rank in incident.ranks if incident.severity == severity else ():
                found.setdefault((incident.role, rank), _LEVELS[severity])
    return found


def split_sentence(text: str) -> tuple[str, str]:
    """(first sentence without its full stop, the rest)."""
    head, stop, rest = text.partition(". ")
    return (head, rest) if stop else (text.removesuffix("."), "")


def step_seconds_of(run: RunRow, role: str) -> float | None:
    """Mean wall time of the last step of the role's ranks; None before the first step."""
    walls = [rank.last.wall_seconds for rank in run.ranks if rank.last and rank.role == role]
    return sum(walls) / len(walls) if walls else None


def _is_context(incident: Incident) -> bool:
    return incident.state == "noted" and not incident.action


def _incident_line(run: RunRow, incident: Incident, now: float) -> BannerLine:
    title = headline(full_sentence(incident.summary)).removesuffix(".")
    parts = (_begin(run, incident, now), _cost(run, incident), _hours(run, incident, now))
    return BannerLine(
        _LEVELS[incident.severity],
        title,
        " · ".join(filter(None, parts)),
        incident.action,
        (incident.sentence, *incident.evidence),
        tuple((incident.role, rank) for rank in incident.ranks),
    )


def _begin(run: RunRow, incident: Incident, now: float) -> str:
    since, step = incident.since_seconds, incident.step
    if not any(rank.state in _LIVING for rank in run.ranks):
        where = "" if step is None else f"step {step}, "
        return f"{where}began at {_clock(since)}"
    age = age_text(now - since)
    return f"for {age}" if step is None else f"since step {step}, {age}"


def _cost(run: RunRow, incident: Incident) -> str:
    lost = incident.lost_seconds
    if lost is None:
        return incident.cost.removesuffix(".")
    step = step_seconds_of(run, incident.role)
    share = f" ({lost / step:.0%})".replace("%", " %") if step else ""
    return f"{seconds_text(lost)} of each step{share}"


def _hours(run: RunRow, incident: Incident, now: float) -> str:
    """Hours of ranks lost since the incident began; "" if unknown or little."""
    living = [rank for rank in run.ranks if rank.state in _LIVING]
    stops_all = incident.kind in _STOPS_ALL
    step = step_seconds_of(run, incident.role)
    if not stops_all and (incident.lost_seconds is None or not step):
        return ""
    ranks = [rank for rank in living if stops_all or incident.role in {"", rank.role}]
    share = 1.0 if stops_all else min(1.0, (incident.lost_seconds or 0.0) / (step or 1.0))
    hours = (now - incident.since_seconds) * len(ranks) * share / 3600
    has_devices = any(rank.devices or rank.device_names for rank in run.ranks)
    unit = "GPU-hours" if has_devices else "rank-hours"
    return f"{rounded(float(f'{hours:.2g}'))} {unit} so far" if hours >= _LEAST_HOURS else ""


def _suspicions(run: RunRow, now: float) -> Iterator[BannerLine]:
    """Nothing while a critical incident is open: it explains the suspicions, or is more urgent."""
    kinds = {incident.kind for incident in run.incidents}
    if any(row.state == "found" and row.severity == "critical" for row in run.incidents):
        return
    for verdict in run.verdicts:
        is_unsure = verdict.state == "insufficient evidence" and verdict.kind not in kinds
        if is_unsure and (verdict.suspicion or verdict.action):
            yield _suspicion_line(verdict, now)


def _suspicion_line(verdict: Verdict, now: float) -> BannerLine:
    title = headline(verdict.summary).removesuffix(".")
    rest = verdict.summary.removeprefix(title).lstrip(".,;: ")
    suspicion, timer = verdict.suspicion, ""
    if suspicion is not None:
        age = max(0.0, now - suspicion.since_seconds)
        timer = f"{age:.0f} s of {suspicion.limit_seconds:.0f} s until it is certain"
    ranks = suspicion.ranks if suspicion else ()
    return BannerLine(
        "unsure",
        title,
        " · ".join(filter(None, (timer, rest))),
        verdict.action,
        verdict.evidence,
        tuple((verdict.role, rank) for rank in ranks),
    )


def _past_line(incident: Incident) -> BannerLine:
    """An incident that lasted until the run ended."""
    title = headline(full_sentence(incident.summary)).removesuffix(".")
    step = "" if incident.step is None else f" (step {incident.step})"
    end = "" if incident.end_seconds is None else f" at {_clock(incident.end_seconds)}"
    return BannerLine(
        _LEVELS[incident.severity],
        title,
        f"from {_clock(incident.since_seconds)}{step} until the run ended{end}",
        incident.action,
        (incident.sentence, *incident.evidence),
        tuple((incident.role, rank) for rank in incident.ranks),
    )


def _standing_line(run: RunRow) -> BannerLine:
    """Why nothing is reported: clear, or what is missing; then where a step goes."""
    standing, ending = run.standing, run.ending.removesuffix(".")
    detail = _bottleneck(run) or standing.reason
    if standing.state == "clear":
        return BannerLine("good", ending or "No problem found", detail, evidence=(standing.reason,))
    if standing.state == "insufficient evidence":
        title = ending or "Not everything can be judged"
        return BannerLine("quiet", title, standing.reason)
    title, rest = split_sentence(standing.reason)
    return BannerLine(_STANDING[standing.state], title, rest)


def _bottleneck(run: RunRow) -> str:
    row = run.bottleneck
    if row is None or not (is_breakdown(row) or (row.state == "found" and row.bound_by)):
        return ""
    return row.summary or capitalized(bound_text(row))


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
