"""Makes the verdicts of one run consistent: a finding can explain other verdicts.

Each judge uses only its own facts. Two examples of what it cannot know:

- A stuck job still has steps from before, so a straggler is found in them.
- Ranks of one role wait for a rank of another role, which their judge cannot name.

Node and hub call ``reconciled`` before verdicts are shown, counted or used by alerts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from dfx_agent.base.text import full_sentence, seconds_text
from dfx_agent.judge import sentences
from dfx_agent.snapshot import Verdict

EXPLAINED = "explained by another finding"
STUCK = "the job is stuck"

_STOPPING = ("crash", "hang")
# after so many seconds, and so many usual steps, without a new step, old steps are not compared
_STILL_SECONDS, _STILL_STEPS = 30.0, 10.0


class Pace(NamedTuple):
    """Recent completed steps of one living role."""

    latest_begin_seconds: float
    """Unix time at which the latest completed step began."""
    still_seconds: float
    """Time since the latest step ended."""
    usual_seconds: float
    """Median duration of a step."""

    @property
    def is_still(self) -> bool:
        """Whether no step was completed for so long that old steps are not compared."""
        return self.still_seconds >= max(_STILL_SECONDS, _STILL_STEPS * self.usual_seconds)


def paces(
    steps: Mapping[str, Sequence[tuple[float, float]]], now_seconds: float
) -> dict[str, Pace]:
    """The pace of each living role. ``steps``: (begin, end) of its latest steps.

    ``now_seconds`` uses the clock of the steps, which does not follow changes of the wall clock.
    """
    return {
        role: Pace(
            max(begin for begin, _ in spans),
            now_seconds - max(end for _, end in spans),
            median(end - begin for begin, end in spans),
        )
        for role, spans in steps.items()
        if spans
    }


def reconciled(verdicts: Iterable[Verdict], paces: Mapping[str, Pace]) -> tuple[Verdict, ...]:
    """Verdicts in which one finding explains the others.

    ``paces``: of living roles with completed steps.
    """
    verdicts = tuple(verdicts)
    found = [
        verdict
        for kind in _STOPPING
        for verdict in verdicts
        if verdict.kind == kind and verdict.state == "found"
    ]
    cause = min((verdict for verdict in found if verdict.ranks), key=_begin, default=None)
    explained = [_explained(verdict, cause) for verdict in verdicts]
    current = [_without_old_steps(verdict, found, paces.get(verdict.role)) for verdict in explained]
    if not found:
        return tuple(current)
    before = [
        verdict.summary
        for verdict in verdicts
        if verdict.kind == "straggler" and verdict.state == "found"
    ]
    first = min(found, key=_begin)
    return tuple(
        _with_before(verdict, before) if _is_same(verdict, first) else verdict
        for verdict in current
    )


def _begin(verdict: Verdict) -> float:
    return float("inf") if verdict.since_seconds is None else verdict.since_seconds


def _is_same(verdict: Verdict, other: Verdict) -> bool:
    return (verdict.kind, verdict.role) == (other.kind, other.role)


def _explained(verdict: Verdict, cause: Verdict | None) -> Verdict:
    """If a hang verdict cannot name a rank, the ranks wait for those of the finding ``cause``."""
    is_open = verdict.kind == "hang" and verdict.state != "clear" and not verdict.ranks
    if cause is None or not is_open:
        return verdict
    summary = sentences.EXPLAINED(cause=full_sentence(cause.summary))
    evidence = (verdict.summary, *verdict.evidence)
    return replace(
        verdict, state="insufficient evidence", summary=summary, cause=EXPLAINED, evidence=evidence
    )


def _without_old_steps(verdict: Verdict, found: Sequence[Verdict], pace: Pace | None) -> Verdict:
    """Withdraws a verdict that is based on old steps of a job that completes none now."""
    is_stuck = any(_has_stopped(cause, pace) for cause in found)
    is_still = pace is not None and pace.is_still
    if verdict.kind == "straggler" and (is_stuck or is_still):
        return _of_before(verdict, None if is_stuck else pace)
    if verdict.kind == "hang" and verdict.state == "clear" and pace and is_still and not is_stuck:
        summary = f"{_no_step(pace)} {full_sentence(verdict.summary)}"
        return replace(verdict, state="insufficient evidence", summary=summary, cause=STUCK)
    return verdict


def _has_stopped(cause: Verdict, pace: Pace | None) -> bool:
    """Whether this finding stopped the role: no completed step began after it."""
    return pace is None or pace.latest_begin_seconds <= _begin(cause)


def _of_before(verdict: Verdict, still: Pace | None) -> Verdict:
    is_found = verdict.state == "found"
    summary = sentences.STUCK_NOW(before=full_sentence(verdict.summary)) if is_found else ""
    if still and not is_found:
        summary = _no_step(still)
    return replace(
        verdict,
        state="insufficient evidence",
        summary=summary or sentences.STUCK_NO_STEPS(),
        cause=STUCK,
        ranks=(),
        lost_seconds=None,
        action="",
    )


def _no_step(pace: Pace) -> str:
    seconds, usual = seconds_text(pace.still_seconds), seconds_text(pace.usual_seconds)
    return sentences.NO_STEP_FOR(seconds=seconds, usual=usual)


def _with_before(verdict: Verdict, before: Iterable[str]) -> Verdict:
    lines = tuple(f"before that: {summary}" for summary in before)
    return replace(verdict, evidence=(*verdict.evidence, *lines))
