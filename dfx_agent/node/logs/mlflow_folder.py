"""A run as MLflow stores it: ``metrics/KEY``, one file a key, lines of "timestamp value step"."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

from dfx_agent.node.logs.folders import files_below
from dfx_agent.node.logs.lines import read_lines
from dfx_agent.node.logs.run import Notes, Record
from dfx_agent.node.logs.values import number, step_of

FOLDER = "metrics"
# each is held open while its lines are merged with the others'
_MAX_FILES = 500

_Line = tuple[float, int, str, float]  # (timestamp in ms, step, key, value)


def is_run_folder(path: Path) -> bool:
    return path.is_dir() and (path / FOLDER).is_dir() and (path / "meta.yaml").is_file()


def read_mlflow(path: Path, notes: Notes) -> Iterator[Record]:
    """Records in the order of logging; neighbours with the same step are one record."""
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    files = sorted(files_below(folder, lambda file, why: notes.add(why, file)))
    for file in files[_MAX_FILES:]:
        notes.add(f"is beyond {_MAX_FILES} keys: left out", str(file.relative_to(folder)))
    lines = [
        _lines(file, file.relative_to(folder).as_posix(), notes) for file in files[:_MAX_FILES]
    ]
    record: Record = {}
    for _, step, key, value in heapq.merge(*lines, key=_when):
        if record and (record["step"] != step or key in record):
            yield record
            record = {}
        record["step"] = step
        record[key] = value
    if record:
        yield record


def _when(line: _Line) -> tuple[float, int]:
    return line[:2]


def _lines(file: Path, key: str, notes: Notes) -> Iterator[_Line]:
    for i, line in enumerate(read_lines(file, notes), start=1):
        words = line.split()
        if not words:
            continue
        when, value = number(words[0]), number(words[1]) if len(words) > 1 else None
        step = step_of(words[2]) if len(words) > 2 else 0
        if when is None or value is None or step is None:
            notes.left_out("is not 'timestamp value step': left out", f"{key}, line {i},")
        else:
            yield when, step, key, value
