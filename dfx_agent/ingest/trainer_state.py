"""Hugging Face's trainer_state.json, as TRL leaves it in every checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dfx_agent.ingest.run import Run, UnreadableLogError, read_lines
from dfx_agent.ingest.values import number, step_of


def read_trainer_state(path: Path) -> Run:
    run = Run()
    for entry in _log_history(path):
        step = step_of(entry.get("step"))
        if step is None:
            run.warn("an entry of log_history has no step: left out")
            continue
        numbers = ((key, number(value)) for key, value in entry.items() if key != "step")
        run.add(step, {key: value for key, value in numbers if value is not None})
    return run


def _log_history(path: Path) -> list[dict[str, Any]]:
    try:
        state = json.loads("".join(read_lines(path)))
    except (ValueError, RecursionError):
        raise UnreadableLogError(f"{path} is not JSON: is it complete?") from None
    history = state.get("log_history") if isinstance(state, dict) else state
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise UnreadableLogError(f"{path} has no log_history: is it a trainer_state.json?")
    return history
