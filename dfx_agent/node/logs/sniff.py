"""Detects the format of a file, first by its content: names of logs are not reliable."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from pathlib import Path

from dfx_agent.catalogue.native.meaning import meaning_of
from dfx_agent.node.logs import parquet
from dfx_agent.node.logs.console import has_report
from dfx_agent.node.logs.folders import why_no_steps
from dfx_agent.node.logs.json_lines import flat, parse_object
from dfx_agent.node.logs.key_map import KeyMap
from dfx_agent.node.logs.lines import DAMAGE, open_text, read_lines
from dfx_agent.node.logs.mlflow_folder import is_run_folder
from dfx_agent.node.logs.printed_pairs import has_pairs, message_of
from dfx_agent.node.logs.run import NotALogError, Notes
from dfx_agent.node.logs.trainer_state import document_records
from dfx_agent.node.logs.values import number, numbers
from dfx_agent.node.logs.verl_console import STEP

_NUM_LINES, _NUM_CHARS = 5_000, 4 << 20
_BEGIN_CHARS, _DOCUMENT_BEGIN_CHARS = 4_096, 1 << 16
_HISTORY = '"log_history"'
_NOTEBOOK = re.compile(r'"(?:cells|nbformat|cell_type)"\s*:')
_LIST_OF_OBJECTS = re.compile(r'\[\s*(?:\{\s*["}]|\{?\s*$)')
_NO_ROWS = re.compile(r"\s*(?:\[\s*\]|null)\s*")
_TABLE_ENDINGS = frozenset({".csv", ".tsv"})


def kind_of(path: Path, key_map: KeyMap) -> str:
    """Name of the format; NotALogError if the beginning of the file does not show it."""
    if path.is_dir():
        return "mlflow" if is_run_folder(path) else "tensorboard"
    if "tfevents" in path.name:
        return "tensorboard"
    if why := why_no_steps(path):
        raise NotALogError(f"{path} {why}")
    with path.open("rb") as raw:
        if raw.read(len(parquet.MAGIC)) == parquet.MAGIC:
            return "parquet"
    notes = Notes()
    lines = _first_lines(path, notes)
    if not any(line.strip() for line in lines) and not (notes.lines or _is_beginning(lines)):
        raise NotALogError(f"{path} is empty")
    endings = {suffix.lower() for suffix in path.suffixes}
    if endings & _TABLE_ENDINGS:
        return "csv"
    begin = "".join(lines[:50])[:_BEGIN_CHARS]
    if ".ipynb" in endings or (begin.startswith("{") and _NOTEBOOK.search(begin)):
        return "notebook"
    lines_with_text = [line for line in lines if line.strip()]
    found = _by_lines(lines_with_text, path, key_map) or _long_document(
        path, lines_with_text, notes
    )
    if found is None and _is_beginning(lines) and not any("\0" in line for line in lines):
        found = _by_first_report(path, key_map)
    if found is None:
        holds_none = not _is_beginning(lines) and _NO_ROWS.fullmatch("".join(lines))
        why = f"{path} holds no rows" if holds_none else ""
        raise NotALogError(why or f"cannot tell what {path} is: name its --format")
    return found


def _long_document(path: Path, lines: list[str], notes: Notes) -> str | None:
    """A JSON document in one line, longer than any that is read and so left out of the lines.

    A list and a history are read entry by entry.
    """
    if lines or not notes.num_left_out:
        return None
    with open_text(path) as text, suppress(*DAMAGE):
        begin = text.read(_DOCUMENT_BEGIN_CHARS).lstrip()
        if _LIST_OF_OBJECTS.match(begin) or _HISTORY in begin:
            return "trl"
    return "json" if document_records(path) is not None else None


def _by_lines(lines: list[str], path: Path, key_map: KeyMap) -> str | None:
    first = lines[0].strip() if lines else ""
    is_json = first.startswith("{") or _LIST_OF_OBJECTS.match(first) is not None
    found = _json_kind(first, lines, path, key_map) if is_json else None
    objects = [parse_object(line) is not None for line in lines[:20]]
    if found is None and objects and (objects[0] or sum(objects) * 2 >= len(objects)):
        found = "console" if _are_messages(lines, key_map) else "jsonl"
    return found or _printed_kind(lines, key_map) or _other_kind(first, lines, key_map)


def _json_kind(first: str, lines: list[str], path: Path, key_map: KeyMap) -> str | None:
    """A document; None for lines of objects, and for a document without records."""
    is_list = _LIST_OF_OBJECTS.match("".join(lines[:2])) is not None
    if is_list or any(_HISTORY in line for line in lines):
        return "trl"
    is_one_line = len(lines) == 1 or parse_object(first) is None
    if not is_one_line or has_report(lines, key_map):
        return None
    return "json" if document_records(path) is not None else None


def _printed_kind(lines: list[str], key_map: KeyMap) -> str | None:
    if any("step:" in line and STEP.search(line) for line in lines):
        return "verl"
    return "console" if has_report(lines, key_map) else None


def _other_kind(first: str, lines: list[str], key_map: KeyMap) -> str | None:
    if first.startswith("{") or _LIST_OF_OBJECTS.match(first):
        return "jsonl" if first.startswith('{"') else "trl"
    if _is_table(lines):
        return "csv"
    return "console" if has_pairs(lines, key_map) else None


def _are_messages(lines: list[str], key_map: KeyMap) -> bool:
    """Whether the reports are texts inside the objects of a structured logger."""
    texts = [message_of(line) for line in lines]
    if texts == lines or not has_pairs(texts, key_map):
        return False
    objects = (parse_object(line) or {} for line in lines)
    return not any(meaning_of(key) for record in objects for key in numbers(flat(record)))


def _is_beginning(lines: list[str]) -> bool:
    """Whether the file continues after these lines."""
    return len(lines) >= _NUM_LINES or sum(map(len, lines)) > _NUM_CHARS


def _by_first_report(path: Path, key_map: KeyMap) -> str | None:
    """Of output that begins with much else, such as progress bars, by the first report in it."""
    lines = read_lines(path, Notes())
    while some := list(islice(lines, _NUM_LINES)):
        if (kind := _printed_kind(some, key_map)) is not None:
            return kind
    return "console" if has_pairs(read_lines(path, Notes()), key_map) else None


def _is_table(lines: list[str]) -> bool:
    """A line with numbers under a line with as many delimiters."""
    if len(lines) < 2:
        return False
    first, second = lines[:2]
    return any(
        first.count(mark) == second.count(mark) > 0
        and any(number(cell) is not None for cell in second.split(mark))
        for mark in ",;\t"
    )


def _first_lines(path: Path, notes: Notes) -> list[str]:
    lines, num_chars = [], 0
    for line in read_lines(path, notes):
        lines.append(line)
        num_chars += len(line)
        if len(lines) >= _NUM_LINES or num_chars > _NUM_CHARS:
            break
    return lines
