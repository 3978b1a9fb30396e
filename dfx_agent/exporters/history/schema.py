"""Tables of a history file, and how it is opened. docs/reference/history.md describes them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from dfx_agent.base.errors import DfxError
from dfx_agent.exporters.history.blocks import block_value

APPLICATION_ID = 0x44465848  # "DFXH"; `file` and SQLite show it
VERSION = 1
BUSY_SECONDS = 2.0
UNFINISHED = ".new"

_TABLES = """
CREATE TABLE run (
    name TEXT NOT NULL, framework TEXT NOT NULL, attempt INTEGER NOT NULL, world_size INTEGER,
    begin_seconds REAL NOT NULL, latest_seconds REAL NOT NULL, end_seconds REAL,
    ending TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, part TEXT NOT NULL,
    num_missed_steps INTEGER NOT NULL
);
CREATE TABLE agents (
    begin_seconds REAL NOT NULL, pid INTEGER NOT NULL, node TEXT NOT NULL, version TEXT NOT NULL,
    PRIMARY KEY (begin_seconds, pid)
);
CREATE TABLE ranks (
    node TEXT NOT NULL, pid INTEGER NOT NULL, begin_seconds REAL NOT NULL, role TEXT NOT NULL,
    rank TEXT NOT NULL, local_rank INTEGER, world_size INTEGER, attempt INTEGER NOT NULL,
    state TEXT NOT NULL, devices TEXT NOT NULL, PRIMARY KEY (node, pid, begin_seconds)
);
CREATE TABLE facts (
    kind TEXT NOT NULL, node TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (kind, node, key)
);
CREATE TABLE schemas (
    id INTEGER PRIMARY KEY, ranks TEXT NOT NULL, columns TEXT NOT NULL, UNIQUE (ranks, columns)
);
CREATE TABLE steps (
    role TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL,
    begin_seconds REAL NOT NULL, end_seconds REAL NOT NULL, bubble_ratio REAL,
    missing_ranks TEXT NOT NULL, schema_id INTEGER NOT NULL REFERENCES schemas (id),
    block BLOB NOT NULL, PRIMARY KEY (role, step, attempt)
);
CREATE TABLE scalar_blocks (
    step INTEGER PRIMARY KEY, schema_id INTEGER NOT NULL REFERENCES schemas (id),
    block BLOB NOT NULL
);
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, role TEXT NOT NULL, state TEXT NOT NULL,
    cause TEXT NOT NULL, stage TEXT NOT NULL, ranks TEXT NOT NULL, step INTEGER,
    first_seconds REAL NOT NULL, latest_seconds REAL NOT NULL, summary TEXT NOT NULL,
    evidence TEXT NOT NULL
);
CREATE TABLE incidents (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, severity TEXT NOT NULL,
    role TEXT NOT NULL, ranks TEXT NOT NULL, stage TEXT NOT NULL, cause TEXT NOT NULL,
    since_seconds REAL NOT NULL, end_seconds REAL, step INTEGER, lost_seconds REAL,
    sentence TEXT NOT NULL, summary TEXT NOT NULL, action TEXT NOT NULL, alerts TEXT NOT NULL,
    evidence TEXT NOT NULL, is_until_run_end INTEGER NOT NULL
);
CREATE TABLE alerts (
    alert TEXT NOT NULL, labels TEXT NOT NULL, severity TEXT NOT NULL, since_seconds REAL NOT NULL,
    step INTEGER, end_seconds REAL, summary TEXT NOT NULL, incident TEXT NOT NULL,
    PRIMARY KEY (alert, labels, since_seconds)
);
"""

# Temporary views of a reader: they use the function block_value, which a file cannot contain.
_VIEWS = """
CREATE TEMP VIEW rank_values AS
    SELECT s.role, s.step, s.attempt, s.begin_seconds, r.value AS rank, c.value AS name,
        block_value(s.block, r.key * json_array_length(m.columns) + c.key) AS value
    FROM steps s JOIN schemas m ON m.id = s.schema_id, json_each(m.ranks) r,
        json_each(m.columns) c;
CREATE TEMP VIEW step_values AS
    SELECT role, step, attempt, begin_seconds, name, count(value) AS num_ranks,
        avg(value) AS mean, min(value) AS min, max(value) AS max
    FROM rank_values GROUP BY role, step, attempt, name HAVING count(value) > 0;
CREATE TEMP VIEW scalars AS
    SELECT s.step, c.value AS key, block_value(s.block, c.key) AS value
    FROM scalar_blocks s JOIN schemas m ON m.id = s.schema_id, json_each(m.columns) c
    WHERE block_value(s.block, c.key) IS NOT NULL;
"""


class HistoryFileError(DfxError):
    """A file that is no history of a run, or of a version that this one cannot read."""


def create(path: str, run: Sequence[object]) -> None:
    """A new file that only this user can read, with its row of ``run``. OSError, sqlite3.Error.

    The file gets its name when it is complete: readers never see half of it.
    """
    unfinished = path + UNFINISHED
    with suppress(FileNotFoundError):
        os.unlink(unfinished)
    os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(open_writable(unfinished, "DELETE")) as connection:
        connection.executescript(
            f"BEGIN;{_TABLES}PRAGMA application_id={APPLICATION_ID};"
            f"PRAGMA user_version={VERSION};COMMIT;"
        )
        marks = ",".join("?" * len(run))
        connection.execute(f"INSERT INTO run VALUES ({marks})", run)  # noqa: S608 (marks)
    os.rename(unfinished, path)


def open_writable(path: str, journal_mode: str) -> sqlite3.Connection:
    """A file that exists, to be written by one thread. sqlite3.Error."""
    connection = sqlite3.connect(_uri(path, "rw"), BUSY_SECONDS, isolation_level=None, uri=True)
    connection.execute(f"PRAGMA journal_mode={journal_mode}")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def open_readonly(path: str, *, has_views: bool = False) -> sqlite3.Connection:
    """A file that exists; nothing can be written. HistoryFileError, with the reason.

    ``has_views``: with the views that read blocks, for queries of people.
    """
    try:
        connection = _connected(path)
    except sqlite3.Error as error:
        raise HistoryFileError(f"cannot read {path}: {error}") from None
    (app_id,), (version,) = (
        connection.execute(f"PRAGMA {name}").fetchone()
        for name in ("application_id", "user_version")
    )
    if app_id != APPLICATION_ID or version != VERSION:
        connection.close()
        what = f"format {version}" if app_id == APPLICATION_ID else "no history of a run"
        raise HistoryFileError(f"{path} is {what}; this dfx-agent reads format {VERSION}")
    if has_views:
        connection.create_function("block_value", 2, block_value, deterministic=True)
        connection.executescript(_VIEWS)
    connection.execute("PRAGMA query_only=1")
    return connection


def _connected(path: str) -> sqlite3.Connection:
    """A connection that has read; a file in a folder that cannot be written is read as it is."""
    try:
        return _probed(_uri(path, "ro"))
    except sqlite3.OperationalError:
        if not os.path.isfile(path) or os.path.exists(f"{path}-wal"):
            raise
        return _probed(f"{_uri(path, 'ro')}&immutable=1")


def _probed(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, BUSY_SECONDS, isolation_level=None, uri=True, check_same_thread=False
    )
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _uri(path: str, mode: str) -> str:
    return f"file:{quote(str(Path(path).resolve()))}?mode={mode}"
