"""Reads the history of a run: what happened, how it ended, its steps and its scalars."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dfx_agent.exporters.history import blocks, folder, schema
from dfx_agent.exporters.history.blocks import Schema
from dfx_agent.exporters.history.run_file import HUB, Fact
from dfx_agent.exporters.history.schema import HistoryFileError
from dfx_agent.snapshot import StepRow

# a run without a new line for so long is not running any more
SILENT_SECONDS = 60.0

StoredState = Literal["found", "warning", "insufficient evidence", "clear"]


@dataclass(frozen=True, slots=True)
class StoredIncident:
    """One incident, from begin to end."""

    id: str
    kind: str
    severity: str
    role: str
    ranks: tuple[str, ...]
    stage: str
    step: int | None
    begin_seconds: float
    end_seconds: float | None
    """None if it continued until the run or its data ended."""
    lost_seconds: float | None
    """Per step."""
    sentence: str
    action: str
    alerts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredAlert:
    """One alert, from begin to end."""

    alert: str
    severity: str
    step: int | None
    begin_seconds: float
    end_seconds: float | None
    summary: str
    incident: str


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in a history file."""

    id: str
    """Name of the file without its suffix; names one run."""
    path: str
    run: str
    framework: str
    world_size: int | None
    begin_seconds: float
    latest_seconds: float
    end_seconds: float | None
    """None if no end was observed."""
    ending: str
    """How it ended, as a sentence; "" if no end was observed."""
    state: StoredState
    """State of the whole run: never "clear" after an incident."""
    reason: str
    num_steps: int
    last_step: int | None
    num_missed_steps: int
    """Steps that were not stored because the disk could not be written."""
    num_agent_starts: int
    is_of_hub: bool
    """Whether a hub stored it: with the ranks of all nodes."""
    incidents: tuple[StoredIncident, ...]
    alerts: tuple[StoredAlert, ...]

    def how_it_ended(self, now_seconds: float) -> str:
        """For people: the ending, "running", or that no end was observed."""
        if self.ending:
            return self.ending
        if now_seconds - self.latest_seconds < SILENT_SECONDS:
            return "running"
        return "no end was observed: the agent stopped first"


@contextmanager
def _reading(path: str) -> Iterator[sqlite3.Connection]:
    """The file as it is now, whatever is written meanwhile. HistoryFileError."""
    with closing(schema.open_readonly(path)) as connection:
        try:
            connection.execute("BEGIN")
            yield connection
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise HistoryFileError(f"cannot read {path}: {error}") from None


def load(path: str) -> StoredRun:
    """The run of a file. HistoryFileError with the reason if it cannot be read."""
    with _reading(path) as connection:
        return _loaded(path, connection)


def runs_in(directory: str) -> tuple[list[StoredRun], list[str]]:
    """Runs of a folder, latest begin first, and a line for each file that cannot be read."""
    found, problems = [], []
    with suppress(FileNotFoundError):
        for path in folder.paths(directory):
            try:
                found.append(load(path))
            except HistoryFileError as error:
                problems.append(str(error))
    return sorted(found, key=lambda run: run.begin_seconds, reverse=True), problems


def path_of(name: str, directory: str) -> str | None:
    """The file with this id, or of the latest run with this name; None if there is none.

    The file of a hub is used before those of its nodes.
    """
    by_id = os.path.join(directory, os.path.basename(name) + folder.SUFFIX)
    if os.path.isfile(by_id):
        return by_id
    latest: StoredRun | None = None
    with suppress(FileNotFoundError):
        for run in _latest_first(directory, name):
            latest = latest or run
            if run.latest_seconds < latest.begin_seconds:
                break
            if run.is_of_hub:
                return run.path
    return None if latest is None else latest.path


def _latest_first(directory: str, name: str) -> Iterator[StoredRun]:
    for path in folder.paths(directory, folder.prefix_of(name)):
        with suppress(HistoryFileError):
            if (run := load(path)).run == name:
                yield run


def steps_of(path: str, before_seconds: float = math.inf, num_steps: int = -1) -> list[StepRow]:
    """Stored steps that began earlier, oldest first; at most the latest ``num_steps``."""
    query = (
        "SELECT step, role, begin_seconds, end_seconds, missing_ranks, bubble_ratio, schema_id,"
        " block FROM steps WHERE begin_seconds < ? ORDER BY begin_seconds DESC LIMIT ?"
    )
    with _reading(path) as connection:
        schemas = _schemas(connection)
        rows = connection.execute(query, (before_seconds, num_steps))
        found = [
            blocks.step_row(
                step, role, (begin, end), json.loads(missing), bubble,
                blocks.unpack(block, schemas[number]),
            )
            for step, role, begin, end, missing, bubble, number, block in rows
        ]  # fmt: skip
    return found[::-1]


def scalars_of(path: str, before_step: int) -> dict[str, tuple[Sequence[int], Sequence[float]]]:
    """Native key -> (steps, means over ranks), of the steps before ``before_step``."""
    query = "SELECT step, schema_id, block FROM scalar_blocks WHERE step < ? ORDER BY step"
    found: dict[str, tuple[array[int], array[float]]] = {}
    with _reading(path) as connection:
        schemas = _schemas(connection)
        for step, number, block in connection.execute(query, (before_step,)):
            for key, value in blocks.unpack(block, schemas[number]).get("", {}).items():
                steps, values = found.setdefault(key, (array("q"), array("d")))
                steps.append(step)
                values.append(value)
    return dict(found)


def facts_of(path: str) -> list[Fact]:
    """Configuration, packages, devices and hosts of a run. HistoryFileError."""
    query = "SELECT kind, node, key, value FROM facts ORDER BY kind, node, key"
    with _reading(path) as connection:
        facts = [Fact(*row) for row in connection.execute(query)]
        (num_nodes,) = connection.execute("SELECT count(DISTINCT node) FROM ranks").fetchone()
    return [*facts, Fact("host", "", "num_nodes", str(num_nodes))]


def _schemas(connection: sqlite3.Connection) -> dict[int, Schema]:
    rows = connection.execute("SELECT id, ranks, columns FROM schemas")
    return {
        number: Schema(tuple(json.loads(ranks)), tuple(json.loads(columns)))
        for number, ranks, columns in rows
    }


def _loaded(path: str, connection: sqlite3.Connection) -> StoredRun:
    query = connection.execute
    row = query(
        "SELECT name, framework, world_size, begin_seconds, latest_seconds, end_seconds, ending,"
        " state, reason, num_missed_steps FROM run"
    ).fetchone()
    if row is None:
        raise ValueError("it names no run")
    (num_steps, last_step) = query(
        "SELECT count(DISTINCT step), max(step) FROM steps WHERE role = (SELECT role FROM steps"
        " GROUP BY role ORDER BY count(*) DESC, role LIMIT 1)"
    ).fetchone()
    writers = [node for (node,) in query("SELECT node FROM agents")]
    incidents = tuple(_incidents(connection))
    return StoredRun(
        id=Path(path).name.removesuffix(folder.SUFFIX), path=path, run=row[0], framework=row[1],
        world_size=row[2], begin_seconds=row[3], latest_seconds=row[4], end_seconds=row[5],
        ending=row[6], state=_state_of(row[7], incidents), reason=row[8], num_steps=num_steps,
        last_step=last_step, num_missed_steps=row[9], num_agent_starts=len(writers),
        is_of_hub=HUB in writers, incidents=incidents, alerts=tuple(_alerts(connection)),
    )  # fmt: skip


def _state_of(state: StoredState, incidents: Sequence[StoredIncident]) -> StoredState:
    """The worst of the whole run: one that had an incident is not clear."""
    severities = {incident.severity for incident in incidents}
    if state == "found" or "critical" in severities:
        return "found"
    return "warning" if state == "warning" or "warning" in severities else state


def _incidents(connection: sqlite3.Connection) -> Iterator[StoredIncident]:
    rows = connection.execute(
        "SELECT id, kind, severity, role, ranks, stage, step, since_seconds, end_seconds,"
        " lost_seconds, sentence, action, alerts FROM incidents ORDER BY since_seconds, id"
    )
    for number, kind, severity, role, ranks, *others, alerts in rows:
        names = tuple(json.loads(ranks)), *others, tuple(json.loads(alerts))
        yield StoredIncident(number, kind, severity, role, *names)


def _alerts(connection: sqlite3.Connection) -> Iterator[StoredAlert]:
    rows = connection.execute(
        "SELECT alert, severity, step, since_seconds, end_seconds, summary, incident FROM alerts"
        " ORDER BY since_seconds, alert"
    )
    return (StoredAlert(*row) for row in rows)
