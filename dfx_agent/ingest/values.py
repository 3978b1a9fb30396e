"""Numbers and steps as logs spell them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

# a number inside the repr of numpy or torch, such as np.float64(…)
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\(([^,()]*)(?:,.*)?\)")

# keys that hold the step, best first
STEP_KEYS = (
    "step",
    "_step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "system/step",
    "system/global_step",
    "iteration",
)


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


def step_of(value: Any) -> int | None:
    """A step is a whole number; logs also write 12.0."""
    step = number(value)
    return int(step) if step is not None and math.isfinite(step) and step == int(step) else None


def find_step(values: Mapping[str, Any]) -> int | None:
    """The step of a record, from the first key that holds one."""
    for key in STEP_KEYS:
        step = step_of(values.get(key))
        if step is not None:
            return step
    return None


def _of_text(text: str) -> float | None:
    wrapped = _WRAPPED.fullmatch(text)
    text = wrapped[1] if wrapped else text
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None
