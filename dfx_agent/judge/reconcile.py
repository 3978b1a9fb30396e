"""Makes the verdicts of one run consistent: the one that explains others is the finding.

Each judge sees its own facts. A job that is stuck still has the steps of before, from which a
straggler is found; ranks of one role wait for a rank of another, and their own judge cannot name
it. Node and hub call ``reconciled`` before anything is shown, counted or alerted on.
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
# without a new step for so long, and so many times what one takes, old steps say nothing of now
_STILL_SECONDS, _STILL_STEPS = 30.0, 10.0


class Pace(NamedTuple):
    """Completed steps of one role that lives; Unix seconds, and seconds of a usual step."""

    latest_begin_seconds: float
    still_seconds: float
    usual_seconds: float

    @property
    def is_still(self) -> bool:
        """Whether no step was completed for so long that steps of before say nothing of now."""
        return self.still_seconds >= max(_STILL_SECONDS, _STILL_STEPS * self.usual_seconds)


def paces(
    steps: Mapping[str, Sequence[tuple[float, float]]], now_seconds: float
) -> dict[str, Pace]:
    """Role -> pace. ``steps``: (begin, end) of the latest steps of each role that lives.

    ``now_seconds`` is on the clock of the steps, which a change of the wall clock does not move.
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
    """``paces``: of the roles that live and have completed steps."""
    verdicts = tuple(verdicts)
    found = [v for kind in _STOPPING for v in verdicts if v.kind == kind and v.state == "found"]
    cause = min((v for v in found if v.ranks), key=_begin, default=None)
    told = [_explained(verdict, cause) for verdict in verdicts]
    told = [_of_now(verdict, found, paces.get(verdict.role)) for verdict in told]
    if not found:
        return tuple(told)
    before = [v.summary for v in verdicts if v.kind == "straggler" and v.state == "found"]
    first = min(found, key=_begin)
    return tuple(_with_before(v, before) if _is_same(v, first) else v for v in told)


def _begin(verdict: Verdict) -> float:
    return float("inf") if verdict.since_seconds is None else verdict.since_seconds


def _is_same(verdict: Verdict, other: Verdict) -> bool:
    return (verdict.kind, verdict.role) == (other.kind, other.role)


def _explained(verdict: Verdict, cause: Verdict | None) -> Verdict:
    """Ranks whose wait nobody can name wait for what another verdict names."""
    is_open = verdict.kind == "hang" and verdict.state != "clear" and not verdict.ranks
    if cause is None or not is_open:
        return verdict
    said = sentences.EXPLAINED(cause=full_sentence(cause.summary))
    evidence = (verdict.summary, *verdict.evidence)
    return replace(
        verdict, state="insufficient evidence", summary=said, cause=EXPLAINED, evidence=evidence
    )


def _of_now(verdict: Verdict, found: Sequence[Verdict], pace: Pace | None) -> Verdict:
    """Nothing that is judged by steps of before is said of a job that makes none now."""
    is_stuck = any(_has_stopped(cause, pace) for cause in found)
    is_still = pace is not None and pace.is_still
    if verdict.kind == "straggler" and (is_stuck or is_still):
        return _of_before(verdict, pace if is_still else None)
    if verdict.kind == "hang" and verdict.state == "clear" and pace and is_still and not is_stuck:
        summary = f"{_no_step(pace)} {full_sentence(verdict.summary)}"
        return replace(verdict, state="insufficient evidence", summary=summary, cause=STUCK)
    return verdict


def _has_stopped(cause: Verdict, pace: Pace | None) -> bool:
    """Whether this finding stopped the role: a step that began after it says otherwise."""
    return pace is None or pace.latest_begin_seconds <= _begin(cause)


def _of_before(verdict: Verdict, still: Pace | None) -> Verdict:
    is_found = verdict.state == "found"
    said = sentences.STUCK_NOW(before=full_sentence(verdict.summary)) if is_found else ""
    if still and not is_found:
        said = _no_step(still)
    return replace(
        verdict,
        state="insufficient evidence",
        summary=said or sentences.STUCK_NO_STEPS(),
        cause=STUCK,
        ranks=(),
        lost_seconds=None,
    )


def _no_step(pace: Pace) -> str:
    seconds, usual = seconds_text(pace.still_seconds), seconds_text(pace.usual_seconds)
    return sentences.NO_STEP_FOR(seconds=seconds, usual=usual)


def _with_before(verdict: Verdict, before: Iterable[str]) -> Verdict:
    lines = tuple(f"before that: {summary}" for summary in before)
    return replace(verdict, evidence=(*verdict.evidence, *lines))
