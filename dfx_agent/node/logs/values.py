"""Parses numbers and steps as logs write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dfx_agent.node.logs.run import Record

# a number inside the repr of numpy or torch, such as np.float64(…)
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\(([^,()]*)(?:,.*)?\)")
_MAX_NUMBER_CHARS = 400
# ms-swift's word for the step: "5/1000"
_STEP_OF_MANY = "global_step/max_steps"


def number(value: Any) -> float | None:
    """The number a JSON value or a text means; None for anything else (booleans too)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _of_text(value.strip()) if isinstance(value, str) else None


def numbers(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Record:
    """The values that are numbers."""
    found = {}
    for key, value in values.items() if isinstance(values, Mapping) else values:
        if value.__class__ is float:
            found[key] = value
        elif (of_value := number(value)) is not None:
            found[key] = of_value
        elif key == _STEP_OF_MANY and (step := number(str(value).partition("/")[0])) is not None:
            found["global_step"] = step
    return found


def step_of(value: Any) -> int | None:
    """The step as an integer; logs also write 12.0. None for other values."""
    step = number(value)
    return int(step) if step is not None and math.isfinite(step) and step == int(step) else None


def _of_text(text: str) -> float | None:
    if len(text) > _MAX_NUMBER_CHARS:
        return None
    if "(" in text and (wrapped := _WRAPPED.fullmatch(text)):
        text = wrapped[1]
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None
