"""Adds errors that devices reported, as "XID 79", to hang and crash verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dfx_agent.base.text import joined
from dfx_agent.facts.run import Reported
from dfx_agent.judge import sentences
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.devices import device_text

_KINDS = frozenset({"hang", "crash"})
_BEFORE_SECONDS = 300.0  # a collective times out minutes after the device has gone
_MOST_LINES = 4


def with_reported(verdicts: Iterable[Verdict], events: Sequence[Reported]) -> tuple[Verdict, ...]:
    """Verdicts with the device errors from about the time of each hang or crash found."""
    return tuple(_with(verdict, events) if events else verdict for verdict in verdicts)


def _with(verdict: Verdict, events: Sequence[Reported]) -> Verdict:
    if verdict.kind not in _KINDS or verdict.state != "found":
        return verdict
    since = (verdict.since_seconds or 0.0) - _BEFORE_SECONDS
    near = [event for event in events if event.time_seconds >= since]
    if not near:
        return verdict
    blamed = {(verdict.role, rank) for rank in verdict.ranks}
    of_blamed = [event for event in near if blamed & set(event.ranks)]
    named = of_blamed[:1] or ([] if verdict.ranks else near[:1])
    lines = [_line(event) for event in dict.fromkeys((*of_blamed, *near))][:_MOST_LINES]
    texts = [sentences.DEVICE_REPORTED(event=_name(event)) for event in named]
    summary = joined([verdict.summary, *texts])
    return replace(verdict, summary=summary, evidence=(*lines, *verdict.evidence))


def _name(event: Reported) -> str:
    return f"{event.name} on {' '.join(filter(None, (event.node, device_text(event.device))))}"


def _line(event: Reported) -> str:
    ranks = [label for _, label in event.ranks]
    used = f", used by {labels_text(ranks)}" if ranks else ", used by no rank that is seen"
    meaning = f" ({event.meaning})" if event.meaning else ""
    return f"{_name(event)}{meaning}{used}"
