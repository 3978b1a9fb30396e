"""What a file is, by its content first: names of logs say little."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from dfx_agent.ingest import parquet
from dfx_agent.ingest.console import has_report
from dfx_agent.ingest.json_lines import parse_object
from dfx_agent.ingest.key_map import KeyMap
from dfx_agent.ingest.lines import read_lines
from dfx_agent.ingest.mlflow_folder import is_run_folder
from dfx_agent.ingest.run import NotALogError, Notes
from dfx_agent.ingest.values import number
from dfx_agent.ingest.verl_console import STEP
from dfx_agent.ingest.wandb_files import why_no_steps

_NUM_LINES, _NUM_CHARS = 5_000, 4 << 20
_BEGIN_CHARS = 4_096
_HISTORY = '"log_history"'
_NOTEBOOK = re.compile(r'"(?:cells|nbformat|cell_type)"\s*:')
_LIST_OF_OBJECTS = re.compile(r"\[\s*(?:\{|$)")
_TABLE_ENDINGS = frozenset({".csv", ".tsv"})


def kind_of(path: Path, key_map: KeyMap) -> str:
    """A format's name; NotALogError when nothing of the beginning says what it is."""
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
    found = _by_lines([line for line in lines if line.strip()], key_map)
    if found is None and _is_beginning(lines) and not any("\0" in line for line in lines):
        found = _by_first_report(read_lines(path, Notes()), key_map)
    if found is None:
        raise NotALogError(f"cannot tell what {path} is: name its --format")
    return found


def _by_lines(lines: list[str], key_map: KeyMap) -> str | None:
    first = lines[0].strip() if lines else ""
    is_json = first.startswith("{") or _LIST_OF_OBJECTS.match(first) is not None
    if is_json and any(_HISTORY in line for line in lines):
        return "trl"
    objects = [parse_object(line) is not None for line in lines[:20]]
    if objects and (objects[0] or sum(objects) * 2 >= len(objects)):
        return "jsonl"
    if any("step:" in line and STEP.search(line) for line in lines):
        return "verl"
    if has_report(lines, key_map):
        return "console"
    if is_json:
        return "jsonl" if first.startswith('{"') else "trl"
    return "csv" if _is_table(lines) else None


def _is_beginning(lines: list[str]) -> bool:
    """Whether the file goes on behind them."""
    return len(lines) >= _NUM_LINES or sum(map(len, lines)) > _NUM_CHARS


def _by_first_report(lines: Iterator[str], key_map: KeyMap) -> str | None:
    """Of output that begins with much else, such as progress bars, by the first report in it."""
    while some := list(islice(lines, _NUM_LINES)):
        if any("step:" in line and STEP.search(line) for line in some):
            return "verl"
        if has_report(some, key_map):
            return "console"
    return None


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
