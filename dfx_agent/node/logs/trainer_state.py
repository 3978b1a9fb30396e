"""Hugging Face's trainer_state.json, as TRL leaves it in every checkpoint.

Its "log_history" is read entry by entry: of a file that is cut, those before the cut. Other JSON
documents are read at once: a list of objects, columns, points of each name, and what pandas writes
(``to_json`` with any ``orient``), also one level deep under any key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dfx_agent.node.logs.json_lines import flat
from dfx_agent.node.logs.lines import DAMAGE, open_text
from dfx_agent.node.logs.run import NotALogError, Notes, Record
from dfx_agent.node.logs.values import number, numbers

_HISTORY = re.compile(r'"log_history"\s*:\s*\[|^\s*\[')
_SEPARATORS = re.compile(r"[\s,]*")
_CHUNK_CHARS = 1 << 16
# an entry is a report of one step
_MAX_ENTRY_CHARS = 8 << 20
_DECODER = json.JSONDecoder()
# a document of columns is read at once
_MAX_DOCUMENT_CHARS = 64 << 20
_LEAST_RECORDS = 2


def read_trainer_state(path: Path, notes: Notes) -> Iterator[Record]:
    """Raises NotALogError for a history without an entry."""
    i = -1
    for i, entry in enumerate(_entries(path, notes)):
        if isinstance(entry, dict):
            yield numbers(flat(entry))
        else:
            notes.left_out("of log_history is no object: left out", f"entry {i}")
    if i < 0 and not notes.is_cut:
        raise NotALogError(f"{path} holds no rows: its list of reports is empty")


def read_document(path: Path, notes: Notes) -> Iterator[Record]:
    """Raises NotALogError for a document that holds no records."""
    records = document_records(path)
    if records is None:
        raise NotALogError(f"{path} holds no records and no columns of numbers")
    for i, entry in enumerate(records):
        if isinstance(entry, Mapping):
            yield numbers(flat(entry))
        else:
            notes.left_out("of the list is no object: left out", f"entry {i}")


def document_records(path: Path) -> list[Any] | None:
    """The records of a JSON document; None without any, and of more than 64 Mi characters."""
    with open_text(path) as file:
        try:
            text = file.read(_MAX_DOCUMENT_CHARS + 1)
            document = json.loads(text) if len(text) <= _MAX_DOCUMENT_CHARS else None
        except (*DAMAGE, ValueError, RecursionError):
            return None
    return _records_of(document, depth=0)


def _records_of(value: Any, depth: int) -> list[Any] | None:
    if isinstance(value, list):
        objects = sum(isinstance(entry, dict) for entry in value)
        return value if objects >= _LEAST_RECORDS and objects * 2 > len(value) else None
    if not isinstance(value, dict):
        return None
    found = _split_frame(value) or _points(value) or _columns(value) or _indexed(value)
    if found is None and depth < 2:
        inner = (_records_of(entry, depth + 1) for entry in value.values())
        return max((records for records in inner if records), key=len, default=None)
    return found


def _split_frame(value: Mapping[str, Any]) -> list[Any] | None:
    """{"columns": [...], "index": [...], "data": [[...], ...]}, as pandas writes it."""
    names, rows, index = value.get("columns"), value.get("data"), value.get("index")
    if not (isinstance(names, list) and isinstance(rows, list)):
        return None
    found = [dict(zip(map(str, names), row, strict=False)) for row in rows if isinstance(row, list)]
    if isinstance(index, list) and not any("step" in str(name).lower() for name in names):
        found = [{"index": at, **row} for at, row in zip(index, found, strict=False)]
    return found if len(found) >= _LEAST_RECORDS else None


def _columns(value: Mapping[str, Any], prefix: str = "") -> list[Any] | None:
    """{"reward": [...], "step": [...]}: of columns with other lengths those of the most common."""
    columns = {
        f"{prefix}{key}": cells
        for key, cells in value.items()
        if isinstance(cells, list) and len(cells) >= _LEAST_RECORDS
        and not any(isinstance(cell, dict | list) for cell in cells)
    }  # fmt: skip
    objects = [cells for cells in value.values() if _is_list_of_objects(cells)]
    if objects or not columns:
        return _next_to(max(objects, key=len), columns) if objects else None
    lengths = [len(cells) for cells in columns.values()]
    length = max(lengths, key=lambda number: (lengths.count(number), number))
    columns = {key: cells for key, cells in columns.items() if len(cells) == length}
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _next_to(objects: list[Any], columns: Mapping[str, list[Any]]) -> list[Any] | None:
    """{"metrics": [{...}, ...], "rewards": [...]}: objects with the columns of their length."""
    neighbours = {key: cells for key, cells in columns.items() if len(cells) == len(objects)}
    if not neighbours or not all(isinstance(entry, dict) for entry in objects):
        return None
    rows = (
        dict(zip(neighbours, cells, strict=True))
        for cells in zip(*neighbours.values(), strict=True)
    )
    return [{**row, **entry} for row, entry in zip(rows, objects, strict=True)]


def _points(value: Mapping[str, Any]) -> list[Any] | None:
    """{"reward": [{"step": 1, "value": 0.5}, ...], "loss": [...]}: points of each name."""
    rows: dict[float, dict[str, Any]] = {}
    for name, points in value.items():
        for point in points if _is_list_of_objects(points) else ():
            step = number(point.get("step")) if isinstance(point, dict) else None
            if step is not None and "value" in point:
                rows.setdefault(step, {"step": step})[name] = point["value"]
    return [rows[step] for step in sorted(rows)] if len(rows) >= _LEAST_RECORDS else None


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and sum(isinstance(v, dict) for v in value) >= _LEAST_RECORDS


def _indexed(value: Mapping[str, Any]) -> list[Any] | None:
    """{"reward": {"0": 0.5, ...}} or {"0": {"reward": 0.5}, ...}, as pandas writes them."""
    inner = {key: cells for key, cells in value.items() if isinstance(cells, dict) and cells}
    if len(inner) < len(value) or not inner:
        return None
    if len(inner) >= _LEAST_RECORDS and all(key.isdecimal() for key in inner):
        return [{"index": int(key), **row} for key, row in inner.items()]
    if not all(at.isdecimal() for cells in inner.values() for at in cells):
        return None
    rows: dict[str, dict[str, Any]] = {}
    for key, cells in inner.items():
        for at, cell in cells.items():
            rows.setdefault(at, {"index": int(at)})[key] = cell
    return list(rows.values()) if len(rows) >= _LEAST_RECORDS else None


def _entries(path: Path, notes: Notes) -> Iterator[Any]:
    chunks = _chunks(path, notes)
    text, begin = _history(chunks, path), 0
    while True:
        begin = _behind_separators(text, begin)
        if text.startswith("]", begin):
            return
        try:
            entry, end = _DECODER.raw_decode(text, begin)
        except RecursionError:
            notes.cut("log_history is nested too deeply: read up to there")
            return
        except ValueError:
            more = next(chunks, "") if len(text) - begin < _MAX_ENTRY_CHARS else ""
            if not more:
                notes.cut("log_history is cut off or damaged: read up to there")
                return
            text, begin = text[begin:] + more, 0
            continue
        yield entry
        begin = end


def _behind_separators(text: str, begin: int) -> int:
    found = _SEPARATORS.match(text, begin)
    return found.end() if found else begin


def _history(chunks: Iterator[str], path: Path) -> str:
    """Text behind the bracket that opens the history."""
    text = ""
    for chunk in chunks:
        text += chunk
        found = _HISTORY.search(text)
        if found:
            return text[found.end() :]
        text = text[-64:] if len(text) > _CHUNK_CHARS else text
    raise NotALogError(f"{path} has no log_history: is it a trainer_state.json?")


def _chunks(path: Path, notes: Notes) -> Iterator[str]:
    with open_text(path) as text:
        try:
            while chunk := text.read(_CHUNK_CHARS):
                yield chunk
        except (EOFError, OSError):
            notes.cut("the file is cut off or damaged: read up to there")
