"""One JSON object a line: verl's file logger, ROLL, exported trackers (wandb-history).

Nested objects are joined with "/"; what stands under "data" or "metrics" counts as the record's. A
line may also hold one value, its name and its step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from dfx_agent.catalogue.native.meaning import is_eval_word
from dfx_agent.node.logs.lines import read_lines
from dfx_agent.node.logs.run import Notes, Record
from dfx_agent.node.logs.steps import is_step_name
from dfx_agent.node.logs.table import KEY_COLUMNS, VALUE_COLUMNS
from dfx_agent.node.logs.values import numbers

_WRAPPERS = ("data", "metrics")
_MAX_DEPTH = 32
# keys that say which part of a step a record is of: "train", "eval"
_PARTS = frozenset({"phase", "split", "mode", "type", "stage", "event", "kind"})


def read_json_lines(path: Path, notes: Notes) -> Iterator[Record]:
    for i, line in enumerate(read_lines(path, notes), start=1):
        if not line.strip():
            continue
        record = parse_object(line)
        if record is None:
            notes.left_out("is not a JSON object: left out", f"line {i}")
        else:
            found = _of_one_value(record) or numbers(flat(record))
            yield _of_evaluation(found) if _is_evaluation(record) else found


def _of_one_value(record: Mapping[str, Any]) -> Record | None:
    """{"metric": "reward", "value": 0.5, "step": 3}: a line for each value, as tables have it."""
    of_value = next((name for name in VALUE_COLUMNS if name in record), None)
    if of_value is None:
        return None
    name = next((record[key] for key in KEY_COLUMNS if isinstance(record.get(key), str)), None)
    if name is None:
        return None
    others = ((key, value) for key, value in record.items() if key != of_value)
    return numbers(chain(((name, record[of_value]),), others))


def _is_evaluation(record: Mapping[str, Any]) -> bool:
    if _PARTS.isdisjoint(record):
        return False
    parts = (record.get(name) for name in _PARTS)
    return any(isinstance(part, str) and is_eval_word(part) for part in parts)


def _of_evaluation(record: Record) -> Record:
    """Keys that say it too: an evaluation has keys that training has."""
    return {key if is_step_name(key) else f"eval/{key}": v for key, v in record.items()}


def parse_object(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def flat(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Flatten nested objects; levels below 32 are left out."""
    if dict not in map(type, record.values()):
        return record
    return dict(_leaves(record, "", 0))


def _leaves(record: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif depth < _MAX_DEPTH:
            is_wrapper = not prefix and key in _WRAPPERS
            yield from _leaves(value, "" if is_wrapper else f"{prefix}{key}/", depth + 1)
