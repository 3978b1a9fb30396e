"""Numbers of the alerts that a user may set: each named once, with its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from dfx_agent.base.errors import ConfigError

T = TypeVar("T")


class Threshold(float):
    """A number with a key, for ``--set KEY=VALUE`` and ``thresholds:`` in dfx.yaml.

    ``unit`` is a base unit, "steps", "families" or "" for a plain number; ``meaning`` completes
    "the alert comes when ...".
    """

    key: str
    unit: str
    meaning: str

    def __new__(cls, key: str, value: float, unit: str, meaning: str) -> Threshold:
        made = super().__new__(cls, value)
        made.key, made.unit, made.meaning = key, unit, meaning
        return made

    def at(self, value: float) -> Threshold:
        return Threshold(self.key, value, self.unit, self.meaning)


def with_values(declaration: T, values: Mapping[str, float]) -> T:
    """The same declaration with the thresholds named in ``values`` (key -> number) moved."""
    moved: Any = _moved(declaration, values)
    result: T = moved
    return result


def _moved(value: Any, values: Mapping[str, float]) -> Any:
    if isinstance(value, Threshold):
        return value.at(values.get(value.key, value))
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value)}
        new = {name: _moved(item, values) for name, item in old.items()}
        changed = {name: item for name, item in new.items() if item is not old[name]}
        return replace(value, **changed) if changed else value
    if isinstance(value, tuple):
        items = tuple(_moved(item, values) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def checked_values(
    given: Mapping[str, Any], thresholds: Mapping[str, Threshold]
) -> dict[str, float]:
    """``given`` as numbers; ConfigError for an unknown key, with the nearest, or a bad number."""
    from difflib import get_close_matches  # noqa: PLC0415 (only an error needs it)

    found = {}
    for key, value in given.items():
        if key not in thresholds:
            near = get_close_matches(key, thresholds, n=3, cutoff=0.3) or sorted(thresholds)
            raise ConfigError(f"unknown threshold {key!r}: nearest are {', '.join(near)}")
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if isinstance(value, bool) or not abs(number) < float("inf"):
            unit = thresholds[key].unit
            kind = f"a number of {unit}" if unit else "a number"
            raise ConfigError(f"threshold {key} must be {kind}, not {value!r}")
        found[key] = number
    return found
