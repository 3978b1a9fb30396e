"""Hugging Face's trainer_state.json, as TRL leaves it in every checkpoint.

Its "log_history" is read entry by entry: of a file that is cut, those before the cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dfx_agent.ingest.json_lines import flat
from dfx_agent.ingest.lines import open_text
from dfx_agent.ingest.run import NotALogError, Notes, Record
from dfx_agent.ingest.values import numbers

_HISTORY = re.compile(r'"log_history"\s*:\s*\[|^\s*\[')
_SEPARATORS = re.compile(r"[\s,]*")
_CHUNK_CHARS = 1 << 16
# an entry is a report of one step
_MAX_ENTRY_CHARS = 8 << 20
_DECODER = json.JSONDecoder()


def read_trainer_state(path: Path, notes: Notes) -> Iterator[Record]:
    for i, entry in enumerate(_entries(path, notes)):
        if isinstance(entry, dict):
            yield numbers(flat(entry))
        else:
            notes.left_out("of log_history is no object: left out", f"entry {i}")


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
