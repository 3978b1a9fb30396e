"""Values that a signal cannot have: a length below 0, a reward of 1e300, an entropy below 0.

A single impossible value is dropped, and all are counted. A key with many impossible values means
something else. NaN and Inf are findings and stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dfx_agent.node.logs.run import Notes, Record

_ROUNDING = 1e-6
# no model computes with wider numbers than float32; a loss or a norm may grow without limit
_LARGEST = 3.5e38
# signal -> the smallest and the largest value that it can have
RANGES = {
    "clip_fraction": (0.0, 1.0),
    "truncation": (0.0, 1.0),
    "grad_norm": (0.0, math.inf),
    "response_length": (0.0, 1e9),
    "entropy": (0.0, _LARGEST),
    "reward": (-_LARGEST, _LARGEST),
}
SHARES = frozenset(signal for signal, (_, most) in RANGES.items() if most == 1.0)
# of an entropy so many below 0 are no accident
_LEAST_NEGATIVE, _NEGATIVE_SHARE = 2, 0.01


def contradiction(signal: str, values: Iterable[float]) -> str | None:
    """Why these values are not those of the signal; None if they may be."""
    finite = [value for value in values if math.isfinite(value)]
    wrong = [value for value in finite if is_impossible(signal, value)]
    if signal == "response_length" and finite and 0 < max(finite) < 1:
        return f"{max(finite):.3g} is no number of tokens"
    if not wrong:
        return None
    if signal == "entropy":
        is_many = len(wrong) >= max(_LEAST_NEGATIVE, _NEGATIVE_SHARE * len(finite))
        why = f"{len(wrong):,} of {len(finite):,} values are below 0"
        return f"{why}: a term of the loss, or a continuous policy" if is_many else None
    is_other = signal in SHARES or len(wrong) * 2 > len(finite)
    return out_of_range(signal, wrong[0]) if is_other else None


def is_impossible(signal: str, value: float) -> bool:
    least, most = RANGES.get(signal, (-math.inf, math.inf))
    return math.isfinite(value) and not least - _ROUNDING <= value <= most + _ROUNDING


def out_of_range(signal: str, value: float) -> str:
    if signal in SHARES:
        return f"{value:.6g} is not between 0 and 1"
    least = RANGES[signal][0]
    return f"{value:.6g} is below {least:.3g}" if value < least else f"{value:.6g} is too large"


class ImpossibleValues:
    """Drops impossible values from rows and counts them. ``signals``: key -> its signal."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.signals: dict[str, str] = {}

    def drop_from(self, step: int, values: Record) -> None:
        for key, signal in self.signals.items():
            value = values.get(key)
            # 0 to 1 is possible for all
            if value is not None and not 0 <= value <= 1 and is_impossible(signal, value):
                del values[key]
                self._notes.add(f"is no possible {signal}: dropped", f"{value:.6g} of step {step}")
