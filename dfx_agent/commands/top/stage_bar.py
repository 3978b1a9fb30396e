"""Bars of stages and waits, and sparklines, as coloured text of a fixed width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from rich.style import Style
from rich.text import Text

from dfx_agent.catalogue.palette import IDLE_COLOR, WAIT_COLOR, stage_color, stage_order
from dfx_agent.snapshot import TimeSplit

# for terminals without colour
_LETTERS = {
    "rollout": "R", "reward": "W", "old_logprob": "L", "ref_logprob": "M", "values": "V",
    "advantage": "A", "actor_update": "U", "forward": "F", "backward": "B", "optimizer": "O",
    "communication": "C", "critic_update": "K", "weight_sync": "S", "offload": "D",
    "validation": "T", "checkpoint": "P",
}  # fmt: skip
_WAIT, _IDLE, _FULL = "░", "·", "█"
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class BarPart:
    """One part of a step: a stage without its waits, all waits, or idle time."""

    name: str
    seconds: float
    drawn_seconds: float
    """Less than ``seconds`` where stages overlap: the whole bar is the wall time."""

    @property
    def letter(self) -> str:
        if self.name in _LETTERS:
            return _LETTERS[self.name]
        return {"wait": _WAIT, "idle": _IDLE}.get(self.name, self.name[:1].lower() or "?")

    @property
    def color(self) -> str:
        own = {"wait": WAIT_COLOR, "idle": IDLE_COLOR}
        return own.get(self.name) or stage_color(self.name)

    def mark(self, length: int, *, has_color: bool) -> Text:
        """``length`` cells of this part."""
        is_stage = self.name not in {"wait", "idle"}
        cell = _FULL if is_stage and has_color else self.letter
        return Text(cell * length, Style(color=self.color) if has_color else "")


def parts_of(split: TimeSplit) -> list[BarPart]:
    """Stages in the order of a step, then waits, then idle."""
    stages = sorted(split.stage_seconds.items(), key=lambda item: stage_order(item[0]))
    total = sum(seconds for _, seconds in stages)
    squeeze = min(1.0, split.active_seconds / total) if total > 0 else 1.0
    parts = [BarPart(name, seconds, seconds * squeeze) for name, seconds in stages]
    waited = wait_seconds(split)
    parts.append(BarPart("wait", waited, waited))
    parts.append(BarPart("idle", split.idle_seconds, split.idle_seconds))
    return [part for part in parts if part.drawn_seconds > 0]


def wait_seconds(split: TimeSplit) -> float:
    return sum(sum(by_stage.values()) for by_stage in split.wait_seconds.values())


def bar(split: TimeSplit, full_seconds: float, width: int, *, has_color: bool) -> Text:
    """``split`` drawn to scale; ``full_seconds`` fill ``width`` cells."""
    drawn = Text()
    if full_seconds <= 0:
        return Text(" " * width)
    reached, cells = 0.0, 0
    for part in parts_of(split):
        reached += part.drawn_seconds
        end = min(width, round(reached / full_seconds * width))
        drawn.append_text(part.mark(end - cells, has_color=has_color))
        cells = end
    drawn.append(" " * (width - cells))
    return drawn


def legend(splits: Iterable[TimeSplit], width: int, *, has_color: bool) -> Text:
    """The parts of the bars that fit in ``width``, longest first, in the order of a step."""
    seconds: dict[str, float] = {}
    for split in splits:
        for part in parts_of(split):
            seconds[part.name] = seconds.get(part.name, 0.0) + part.seconds
    room, shown = width, []
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        if len(name) + 4 <= room:
            room -= len(name) + 4
            shown.append(name)
    drawn = Text()
    for name in sorted(shown, key=lambda name: (name == "idle", name == "wait", stage_order(name))):
        drawn.append_text(BarPart(name, 0, 0).mark(1, has_color=has_color))
        drawn.append(f" {name}  ")
    return drawn


def sparkline(values: Sequence[float | None], width: int) -> str:
    """All values in ``width`` marks between minimum and maximum; " " where none is, "!" for NaN."""
    means = _means(values, width)
    finite = list(_finite(means))
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = high - low

    def mark(value: float | None) -> str:
        if value is None or not isfinite(value):
            return " " if value is None else "!"
        return _SPARKS[round((value - low) / span * 7)] if span > 0 else _SPARKS[3]

    return "".join(map(mark, means))


def _means(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most ``width`` means of neighbours; a value that is not finite stays visible."""
    if len(values) <= width:
        return list(values)
    edges = [round(n * len(values) / width) for n in range(width + 1)] if width > 0 else [0]
    means: list[float | None] = []
    for begin, end in pairwise(edges):
        present = [value for value in values[begin:end] if value is not None]
        means.append(sum(present) / len(present) if present else None)
    return means


def _finite(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None and isfinite(value))
