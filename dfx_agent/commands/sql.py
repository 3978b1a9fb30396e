"""Runs one SQL query on the history of a run, without a way to change it."""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from contextlib import closing

from dfx_agent.base.errors import DfxError, UsageError

HELP = "run a read-only SQL query on the history of a run"
EXAMPLE = """dfx-agent sql 'select kind, step, sentence from incidents'
  dfx-agent sql --run nightly 'select step, max from step_values'

docs/reference/history.md describes the tables. Without --run the latest run is read."""

_STEPS_BETWEEN_CHECKS = 10_000
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_SAFE_PRAGMAS = {"table_info", "table_list", "table_xinfo"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dfx_agent.commands.history.chosen import add_history_arguments

    parser.add_argument("query", metavar="QUERY", help="one SELECT")
    parser.add_argument("--run", metavar="RUN", help="name, id or file of a run (the latest run)")
    parser.add_argument("--json", action="store_true", help="print JSON: an object per row")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="N", help="stop the query after N s (10)"
    )
    add_history_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """0 when the query ended, 1 when it took too long; UsageError when it is wrong."""
    from dfx_agent.commands.history.chosen import chosen_path

    if not args.seconds > 0:
        raise UsageError(f"--seconds {args.seconds}: use a number above 0")
    columns, rows = answer(args.query, chosen_path(args.run, args), args.seconds)
    if args.json:
        objects = [dict(zip(columns, map(_json_value, row), strict=True)) for row in rows]
        print(json.dumps(objects, indent=1, ensure_ascii=False))
        return 0
    from dfx_agent.commands.history.history_text import table_lines, width_of_output

    texts = [columns, *([_text(value) for value in row] for row in rows)]
    print("\n".join(table_lines(texts, width_of_output())))
    print(f"({len(rows)} {'row' if len(rows) == 1 else 'rows'})", file=sys.stderr)
    return 0


def answer(
    query: str, path: str, limit_seconds: float
) -> tuple[list[str], list[tuple[object, ...]]]:
    """(names of columns, rows). UsageError for a wrong query, DfxError if it takes too long."""
    from dfx_agent.exporters.history.schema import open_readonly

    end = time.monotonic() + limit_seconds
    with closing(open_readonly(path, has_views=True)) as connection:
        connection.set_authorizer(_permission)
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_CHECKS)
        try:
            cursor = connection.execute(query)
            rows = cursor.fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            if str(error) == "interrupted":
                limit = f"the query took longer than {limit_seconds:g} s"
                raise DfxError(f"{limit}: give --seconds N, or a narrower WHERE") from None
            raise UsageError(f"{_reason(error)}; tables: docs/reference/history.md") from None
    if cursor.description is None:
        raise UsageError("this is no query: write a SELECT")
    return [column[0] for column in cursor.description], rows


def _permission(
    action: int, first: str | None, _second: str | None, _db: str | None, _source: str | None
) -> int:
    """Reading is allowed, and nothing else: a query cannot open another file."""
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _SAFE_PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "only reading is allowed" if text == "not authorized" else text


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _json_value(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
