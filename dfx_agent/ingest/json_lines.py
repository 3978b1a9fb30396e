"""One JSON object a line: verl's file logger, ROLL, exported trackers.

Nested objects are joined with "/"; what stands under "data" or "metrics" counts as the record's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dfx_agent.ingest.run import Run, read_lines
from dfx_agent.ingest.values import STEP_KEYS, find_step, number

_WRAPPERS = ("data", "metrics")


def read_json_lines(path: Path) -> Run:
    run = Run()
    for i, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        record = _parse(line)
        if record is None:
            run.warn(f"line {i} is not a JSON object: left out")
        else:
            _add(run, dict(_flat(record, "")))
    return run


def _add(run: Run, record: dict[str, Any]) -> None:
    """A record without a step is a step of its own."""
    step = find_step(record)
    if step is None:
        run.warn("records without a step: counted from 0")
        step = run.rows[-1][0] + 1 if run.rows else 0
    numbers = ((key, number(value)) for key, value in record.items() if key not in STEP_KEYS)
    run.add(step, {key: value for key, value in numbers if value is not None})


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _flat(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, dict):
            is_wrapper = not prefix and key in _WRAPPERS
            yield from _flat(value, "" if is_wrapper else f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value
