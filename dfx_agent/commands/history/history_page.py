"""Stored runs as pages of a serving agent: `/history`, one run, and two runs compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dfx_agent.base.html import template
from dfx_agent.commands.history import history_text
from dfx_agent.exporters.history.stored_run import StoredAlert, StoredIncident, StoredRun

_LEAST_WIDTH = 0.5  # percent of the run: a short incident stays visible


@dataclass(frozen=True, slots=True)
class Event:
    """An incident or an alert; ``left`` and ``width`` are percent of the run."""

    when: str
    step: int | None
    severity: str
    name: str
    text: str
    left: float
    width: float


def list_page(
    runs: Sequence[StoredRun],
    problems: Sequence[str],
    now_seconds: float,
    compared: Sequence[str] = (),
    chosen: tuple[str, str] = ("", ""),
) -> str:
    """All stored runs; each leads to its page. ``compared``: the text about the ``chosen`` runs."""
    return _rendered(
        run=None, runs=runs, problems=problems, now=now_seconds, compared=compared, chosen=chosen
    )


def run_page(run: StoredRun, now_seconds: float) -> str:
    """How a run ended and, on one time line, what happened in it."""
    ended = run.how_it_ended(now_seconds)
    return _rendered(run=run, ended=ended, events=sorted(_events(run), key=lambda e: e.left))


def _rendered(**values: object) -> str:
    words = {
        "moment": history_text.moment_text,
        "duration": history_text.duration_text,
        "times": history_text.times_text,
        "state_text": history_text.state_word,
    }
    return template(__package__ or "", "history.html").render(**words, **values)


def _events(run: StoredRun) -> Iterator[Event]:
    for incident in run.incidents:
        yield _event(run, incident, incident.kind, incident.sentence)
    for alert in run.alerts:
        yield _event(run, alert, alert.alert, alert.summary)


def _event(run: StoredRun, row: StoredIncident | StoredAlert, name: str, text: str) -> Event:
    span = max(run.latest_seconds - run.begin_seconds, 1.0)
    end_seconds = run.latest_seconds if row.end_seconds is None else row.end_seconds
    left = 100 * (row.begin_seconds - run.begin_seconds) / span
    width = 100 * (end_seconds - row.begin_seconds) / span
    left = min(max(left, 0.0), 100 - _LEAST_WIDTH)
    width = min(max(width, _LEAST_WIDTH), 100 - left)
    when = history_text.when_text(run, row)
    return Event(when, row.step, row.severity, name, text, round(left, 1), round(width, 1))
