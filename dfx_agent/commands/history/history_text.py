"""Stored runs as text for a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence

from dfx_agent.exporters.history.stored_run import StoredAlert, StoredIncident, StoredRun

_LEAST_WIDTH = 60
_MOST_ALERTS = 50


def list_lines(runs: Sequence[StoredRun], now_seconds: float) -> list[str]:
    """A table: id, duration, steps, end, state with incidents."""
    rows = [("run", "observed for", "steps", "end", "state")]
    rows += [
        (
            run.id,
            duration_text(run.latest_seconds - run.begin_seconds),
            str(run.num_steps),
            _end_word(run, now_seconds),
            state_word(run),
        )
        for run in runs
    ]
    return table_lines(rows, width_of_output())


def state_word(run: StoredRun) -> str:
    """The state of the whole run, with its incidents."""
    return f"{run.state}: {_incidents_text(run)}" if run.incidents else run.state


def _end_word(run: StoredRun, now_seconds: float) -> str:
    if run.ending:
        return "ended"
    return "running" if run.how_it_ended(now_seconds) == "running" else "not observed"


def run_lines(run: StoredRun, now_seconds: float) -> list[str]:
    """What happened in one run and how it ended."""
    size = "" if run.world_size is None else f", world size {run.world_size}"
    span = duration_text(run.latest_seconds - run.begin_seconds)
    steps = f"{run.num_steps} steps stored"
    steps += "" if run.last_step is None else f", the last is step {run.last_step}"
    missed = f" {run.num_missed_steps} steps are missing." if run.num_missed_steps else ""
    return [
        f"run {run.run} ({run.framework or 'no framework'}{size})",
        f"  file       {run.path}",
        f"  begin      {moment_text(run.begin_seconds)}, observed for {span}",
        f"  steps      {steps}.{missed}",
        f"  agent      started {times_text(run.num_agent_starts)}",
        *_wrapped("  end        ", run.how_it_ended(now_seconds)),
        *_wrapped("  state      ", _state_text(run)),
        *_incident_lines(run),
        *_alert_lines(run),
    ]


def _state_text(run: StoredRun) -> str:
    """A run with an incident is never shown as clear, whatever came after."""
    if run.incidents:
        return f"{state_word(run)}, see below"
    return f"{run.state}: {run.reason.removeprefix(run.ending).strip()}"


def _incident_lines(run: StoredRun) -> Iterator[str]:
    yield "incidents:" if run.incidents else "no incidents"
    for incident in run.incidents:
        when = _when(run, incident)
        yield f"  {when}: {incident.severity}, {incident.kind}"
        yield from _wrapped("    ", incident.sentence)


def _alert_lines(run: StoredRun) -> Iterator[str]:
    if run.alerts:
        yield "alerts:"
    for alert in run.alerts[:_MOST_ALERTS]:
        yield f"  {_when(run, alert)}: {alert.severity}, {alert.alert}"
    if len(run.alerts) > _MOST_ALERTS:
        yield f"  and {len(run.alerts) - _MOST_ALERTS} more: --json has all"


def when_text(run: StoredRun, event: StoredIncident | StoredAlert) -> str:
    """Begin and duration of an incident or an alert."""
    if event.end_seconds is not None:
        lasted = f"for {duration_text(event.end_seconds - event.begin_seconds)}"
    else:
        lasted = "until the run ended" if run.ending else "and was open when last observed"
    return f"{moment_text(event.begin_seconds)} {lasted}"


def _when(run: StoredRun, event: StoredIncident | StoredAlert) -> str:
    where = "" if event.step is None else f", step {event.step}"
    return f"{when_text(run, event)}{where}"


def _incidents_text(run: StoredRun) -> str:
    kinds = ", ".join(dict.fromkeys(incident.kind for incident in run.incidents))
    word = "incident" if len(run.incidents) == 1 else "incidents"
    return f"{len(run.incidents)} {word} ({kinds})"


def table_lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns as wide as their texts; the last one is cut at ``width``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = []
    for row in rows:
        cells = [cell.ljust(size) for cell, size in zip(row, widths, strict=False)]
        line = "  ".join([*cells, row[-1]]).rstrip()
        lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
    return lines


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _width(), initial_indent=head, subsequent_indent=" " * len(head)
    ) or [head.rstrip()]


def _width() -> int:
    """For prose; a file or a pipe gets lines for a terminal too."""
    return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)


def width_of_output() -> int:
    """For tables: nothing is cut in a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def times_text(number: int) -> str:
    """For example "3 times"."""
    return "once" if number == 1 else f"{number} times"


def moment_text(seconds: float) -> str:
    """In the zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration_text(seconds: float) -> str:
    """The two largest units: "41 s", "3 min 5 s", "2 h 10 min", "3 d 4 h"."""
    whole = max(0, round(seconds))
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, unit in units:
        number, whole = divmod(whole, size)
        if number or parts or unit == "s":
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])
