"""Writes one run into its file: steps, scalars, verdicts, incidents, alerts, ranks, facts."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dfx_agent.exporters.history import blocks, folder, schema
from dfx_agent.exporters.history.blocks import EMPTY, Schema
from dfx_agent.snapshot import AgentRow, AlertRow, Incident, RankRow, RunRow, StepRow, Verdict

HUB = "hub"  # in the name of a file and in place of its node, if a hub wrote the file
_LIVING = ("live", "unknown")
_SAME_BEGIN_SECONDS = 5.0  # a hub corrects the clock of a node, which moves the begin of a process


@dataclass(frozen=True, slots=True)
class Fact:
    """Something about the run that another run may have differently."""

    kind: str
    """"config", "package", "host" or "device"."""
    node: str
    """"" if it holds for the run."""
    key: str
    value: str


class RunFile:
    """The file of one run, open for writing in one thread. Methods raise sqlite3.Error, OSError."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self.num_missed_steps = 0
        self._connection = connection
        self._schemas: dict[Schema, int] = {}
        self._step_schemas: dict[str, Schema] = {}  # by role
        self._scalar_schema = EMPTY
        self._seen_rows: Sequence[StepRow] = ()  # of the last write: a row that changes is new
        self._last_steps: dict[str, int] = {}
        self._resumed: dict[str, tuple[int, float]] = {}  # role -> (last step, its end)
        self._resumed_scalars: int | None = None  # the last step of an earlier agent
        self.last_scalars: int | None = None  # the last step that is stored
        self.scalars_read_seconds: float | None = None  # when they were read last, monotonic
        self._verdicts: dict[tuple[str, str], tuple[tuple[object, ...], int]] = {}
        self._firing: dict[tuple[str, str, float], AlertRow] = {}
        self._conclusion: tuple[object, ...] | None = None
        self._written_ranks: dict[tuple[object, ...], tuple[object, ...]] = {}
        self._open_incidents: frozenset[str] = frozenset()
        self._has_seen_alerts = self.has_config = self.is_ended = False
        self._resume()

    @classmethod
    def open_for(
        cls, directory: str, run: RunRow, journal_mode: str, *, is_of_hub: bool = False
    ) -> RunFile:
        """The file in which an earlier agent (or hub) stored this run, else a new one.

        It is the same run while one of its processes is the same. A hub and an agent on one host
        have a file each.
        """
        name = f"{run.run}-{HUB}" if is_of_hub else run.run
        for path in folder.paths(directory, folder.prefix_of(name)):
            if _holds(path, run, is_of_hub=is_of_hub):
                return cls(path, schema.open_writable(path, journal_mode))
        name = folder.file_name(name, run.begin_seconds, frozenset(os.listdir(directory)))
        path = os.path.join(directory, name)
        unwritten = replace(run, ending="")  # what is known of its end is not stored yet
        schema.create(path, _run_values(unwritten, run.begin_seconds, 0))
        return cls(path, schema.open_writable(path, journal_mode))

    def _resume(self) -> None:
        """Continue where an earlier agent stopped."""
        query = self._connection.execute
        latest = "SELECT role, max(step), max(end_seconds) FROM steps GROUP BY role"
        self._resumed = {role: (step, end) for role, step, end in query(latest)}
        self._last_steps = {role: step for role, (step, _) in self._resumed.items()}
        (self._resumed_scalars,) = query("SELECT max(step) FROM scalar_blocks").fetchone()
        self.last_scalars = self._resumed_scalars
        for number, ranks, columns in query("SELECT id, ranks, columns FROM schemas"):
            found = Schema(tuple(json.loads(ranks)), tuple(json.loads(columns)))
            self._schemas[found] = number
        self._begins = _begins(self._connection)
        for missed, ending in query("SELECT num_missed_steps, ending FROM run"):
            self.num_missed_steps, self.is_ended = missed, bool(ending)

    def begin(self) -> None:
        """Start to write: all that follows is stored by ``commit``, or nothing of it."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def close(self, *, is_complete: bool) -> None:
        """``is_complete``: the run has ended, so its file becomes one that can be copied.

        While another process reads it, it stays as it is, which loses nothing.
        """
        if is_complete:
            with suppress(sqlite3.OperationalError):
                self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()

    def write_agent(self, agent: AgentRow) -> None:
        node = HUB if agent.nodes else agent.node
        row = agent.begin_seconds, agent.pid, node, agent.version
        self._put("agents", row)

    def write_facts(self, facts: Iterable[Fact]) -> None:
        """``has_config`` is true from now on if the job itself could be read."""
        for fact in facts:
            self._put("facts", (fact.kind, fact.node, fact.key, fact.value))
            self.has_config = self.has_config or fact.kind == "config"

    def write_run(self, run: RunRow, now_seconds: float) -> bool:
        """The run, its ranks, verdicts and incidents. Returns whether anything had changed."""
        conclusion = (
            run.standing, run.verdicts, run.incidents, run.past_incidents, run.ending, run.ranks,
            self.num_missed_steps,
        )  # fmt: skip
        if run.ending and conclusion == self._conclusion:
            return False
        self._conclusion = conclusion
        for rank in run.ranks:
            self._write_rank(rank)
        for verdict in run.verdicts:
            self._write_verdict(verdict, now_seconds)
        self._write_incidents(run)
        self._connection.execute("DELETE FROM run")
        self._put("run", _run_values(run, now_seconds, self.num_missed_steps))
        return True

    def write_steps(self, rows: Sequence[StepRow], attempt: int) -> int:
        """Steps that are new or have changed. Returns their number."""
        seen = set(map(id, self._seen_rows))
        fresh = [row for row in rows if id(row) not in seen and self._is_own(row)]
        self._seen_rows = rows
        for row in fresh:
            self._count_missed(row)
            before = self._step_schemas.get(row.role, EMPTY)
            used, block = blocks.pack_cells(row.cells, before)
            self._step_schemas[row.role] = used
            self._put("steps", (
                row.role, row.step, attempt, row.begin_seconds, row.end_seconds, row.bubble_ratio,
                json.dumps(row.missing_ranks), self._schema_id(used), block,
            ))  # fmt: skip
        return len(fresh)

    def _is_own(self, row: StepRow) -> bool:
        """Whether no earlier agent stored it: its first steps may be overwritten here."""
        last, end_seconds = self._resumed.get(row.role, (-1, 0.0))
        return row.step > last or row.begin_seconds >= end_seconds

    def _count_missed(self, row: StepRow) -> None:
        last = self._last_steps.get(row.role)
        if last is not None and row.step > last + 1:
            self.num_missed_steps += row.step - last - 1
        self._last_steps[row.role] = row.step

    def write_scalars(self, by_step: Mapping[int, Mapping[str, float]]) -> None:
        """Step -> native key -> mean over ranks, as reported; replaces what this agent wrote."""
        resumed = self._resumed_scalars
        for step, values in by_step.items():
            if resumed is not None and step <= resumed:
                continue
            used, block = blocks.pack_scalars(values, self._scalar_schema)
            self._scalar_schema = used
            self._put("scalar_blocks", (step, self._schema_id(used), block))
        before = () if self.last_scalars is None else (self.last_scalars,)
        self.last_scalars = max((*before, *by_step), default=None)

    def write_alerts(self, rows: Iterable[AlertRow], now_seconds: float) -> None:
        """Alerts that fire now; an alert that no longer does has ended."""
        firing = {_alert_key(row): row for row in rows}
        if not self._has_seen_alerts:  # alerts of an earlier agent that do not fire any more
            query = "SELECT alert, labels, since_seconds FROM alerts WHERE end_seconds IS NULL"
            for key in set(self._connection.execute(query)) - firing.keys():
                self._end_alert(key, now_seconds)
            self._has_seen_alerts = True
        for key, row in firing.items():
            if self._firing.get(key) != row:
                values = row.severity, row.since_seconds, row.since_step, None, row.summary
                self._put("alerts", (*key[:2], *values, row.incident))
        for key in self._firing.keys() - firing.keys():
            self._end_alert(key, now_seconds)
        self._firing = firing

    def _end_alert(self, key: Sequence[object], now_seconds: float) -> None:
        query = "UPDATE alerts SET end_seconds=? WHERE alert=? AND labels=? AND since_seconds=?"
        self._connection.execute(query, (now_seconds, *key))

    def _write_incidents(self, run: RunRow) -> None:
        """All that are shown. One that ends without being a past incident was noise: not stored."""
        shown = {incident.id: incident for incident in (*run.past_incidents, *run.incidents)}
        for incident in shown.values():
            self._put("incidents", _incident(incident))
        for gone in self._open_incidents - shown.keys():
            self._connection.execute("DELETE FROM incidents WHERE id=?", (gone,))
        self._open_incidents = frozenset(i.id for i in shown.values() if i.end_seconds is None)

    def _write_rank(self, rank: RankRow) -> None:
        process = rank.node, rank.pid
        begin_seconds = self._begins.get(process, -math.inf)
        if abs(rank.begin_seconds - begin_seconds) > _SAME_BEGIN_SECONDS:
            begin_seconds = self._begins[process] = rank.begin_seconds
        key = *process, begin_seconds
        row = (
            *key, rank.role, rank.rank, rank.local_rank, rank.world_size, rank.attempt, rank.state,
            json.dumps(rank.device_names),
        )  # fmt: skip
        if self._written_ranks.get(key) != row:
            self._put("ranks", row)
            self._written_ranks[key] = row

    def _write_verdict(self, verdict: Verdict, now_seconds: float) -> None:
        """A row for each conclusion; while only its numbers change the row is updated."""
        subject = verdict.kind, verdict.role
        same = verdict.state, verdict.cause, verdict.stage, verdict.ranks
        before = self._verdicts.get(subject)
        if before is not None and before[0] == same:
            self._connection.execute(
                "UPDATE verdicts SET latest_seconds=?, summary=?, evidence=? WHERE id=?",
                (now_seconds, verdict.summary, json.dumps(verdict.evidence), before[1]),
            )
            return
        number = self._put("verdicts", (
            None, *subject, verdict.state, verdict.cause, verdict.stage, json.dumps(verdict.ranks),
            verdict.step, now_seconds, now_seconds, verdict.summary, json.dumps(verdict.evidence),
        ))  # fmt: skip
        self._verdicts[subject] = same, number

    def _schema_id(self, used: Schema) -> int:
        number = self._schemas.get(used)
        if number is None:
            row = None, json.dumps(used.ranks), json.dumps(used.columns)
            number = self._schemas[used] = self._put("schemas", row)
        return number

    def _put(self, table: str, row: Sequence[object]) -> int:
        """Insert or replace one row. Returns its number."""
        marks = ",".join("?" * len(row))
        query = f"INSERT OR REPLACE INTO {table} VALUES ({marks})"  # noqa: S608 (our own names)
        cursor = self._connection.execute(query, row)
        return int(cursor.lastrowid or 0)


def _run_values(run: RunRow, now_seconds: float, num_missed_steps: int) -> tuple[object, ...]:
    """The row of the table ``run``."""
    events = [rank.last_event_seconds or rank.begin_seconds for rank in run.ranks]
    sizes = [rank.world_size for rank in run.ranks if rank.world_size is not None]
    end_seconds = max([run.begin_seconds, *events]) if run.ending else None
    return (
        run.run, run.framework, run.attempt, max(sizes, default=None), run.begin_seconds,
        now_seconds if end_seconds is None else end_seconds, end_seconds, run.ending,
        run.standing.state, run.standing.reason, run.part, num_missed_steps,
    )  # fmt: skip


def _holds(path: str, run: RunRow, *, is_of_hub: bool) -> bool:
    """Whether this file is about the same run: the same name, and one of the same processes."""
    try:
        connection = schema.open_readonly(path)
    except schema.HistoryFileError:
        return False
    try:
        of_run = dict(connection.execute("SELECT name, begin_seconds FROM run"))
        if run.run not in of_run:
            return False
        stored = _begins(connection)
        writers = {node for (node,) in connection.execute("SELECT node FROM agents")}
    except sqlite3.Error:
        return False
    finally:
        connection.close()
    if writers and is_of_hub != (HUB in writers):
        return False
    if not stored:  # its first write failed
        return bool(of_run[run.run] == run.begin_seconds)
    begins = ((rank, stored.get((rank.node, rank.pid), -math.inf)) for rank in run.ranks)
    return any(abs(rank.begin_seconds - begin) <= _SAME_BEGIN_SECONDS for rank, begin in begins)


def _begins(connection: sqlite3.Connection) -> dict[tuple[str, int], float]:
    """(node, pid) -> when the process that had this pid last began."""
    rows = connection.execute("SELECT node, pid, begin_seconds FROM ranks ORDER BY begin_seconds")
    return {(node, pid): begin for node, pid, begin in rows}


def _incident(incident: Incident) -> tuple[object, ...]:
    return (
        incident.id, incident.kind, incident.state, incident.severity, incident.role,
        json.dumps(incident.ranks), incident.stage, incident.cause, incident.since_seconds,
        incident.end_seconds, incident.step, incident.lost_seconds, incident.sentence,
        incident.summary, incident.action, json.dumps(incident.alerts),
        json.dumps(incident.evidence), int(incident.is_until_run_end),
    )  # fmt: skip


def _alert_key(row: AlertRow) -> tuple[str, str, float]:
    return row.alert, json.dumps(dict(sorted(row.labels.items()))), row.since_seconds


def has_ended(run: RunRow) -> bool:
    """Whether none of its processes lives."""
    return not any(rank.state in _LIVING for rank in run.ranks)
