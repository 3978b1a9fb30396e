"""What a frame shows: the data, and what the keys have chosen. Values; no terminal, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dfx_agent.snapshot import RunRow, Snapshot

RankKey = tuple[str, str]  # role, rank
Sort = Literal["worst", "rank", "work", "wait", "memory", "step"]

SORTS: tuple[Sort, ...] = ("worst", "rank", "work", "wait", "memory", "step")
_PAGE_ROWS = 10


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of one number over the steps, oldest first; None where a step has none."""

    name: str
    values: tuple[float | None, ...]
    unit: str = ""
    """"bytes" for memory."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is known now. ``snapshot`` is None before the first answer."""

    snapshot: Snapshot | None
    now_seconds: float
    source: str = ""
    place: str = ""
    """Where was looked, for people."""
    problem: str = ""
    """Why there is no fresh snapshot; "" if there is one."""
    curves: Mapping[str, Sequence[Curve]] = field(default_factory=dict)
    """By run."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the keys have chosen. ``run``: "" for the latest one."""

    run: str = ""
    sort: Sort = "worst"
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    selected: RankKey | None = None
    has_detail: bool = False
    has_evidence: bool = False
    has_help: bool = False


def run_of(shown: Shown, choice: Choice) -> RunRow | None:
    """The chosen run, else the latest one with a living rank, else the latest."""
    runs = shown.snapshot.runs if shown.snapshot else ()
    named = next((run for run in runs if run.run == choice.run), None)
    living = [run for run in runs if any(rank.state in {"live", "unknown"} for rank in run.ranks)]
    latest = max(living or runs, key=lambda run: run.begin_seconds, default=None)
    return named or (None if choice.run else latest)


def pressed(choice: Choice, key: str, ranks: Sequence[RankKey], runs: Sequence[str]) -> Choice:
    """The choice after a key. ``ranks``: in the order of the screen; ``runs``: names."""
    if choice.is_typing:
        return _typed(choice, key)
    if key in _MOVES:
        return replace(choice, selected=_moved(choice.selected, _MOVES[key], ranks))
    if key == "enter":
        first = choice.selected if choice.selected in ranks else next(iter(ranks), None)
        return replace(choice, selected=first, has_detail=not choice.has_detail and bool(first))
    if key == "escape":
        return replace(
            choice, has_detail=False, has_evidence=False, has_help=False, filter="", selected=None
        )
    if key == "tab":
        return replace(choice, run=_after(choice.run, runs), selected=None, has_detail=False)
    return _toggled(choice, key)


def _toggled(choice: Choice, key: str) -> Choice:
    if key == "s":
        return replace(choice, sort=SORTS[(SORTS.index(choice.sort) + 1) % len(SORTS)])
    if key == "r":
        return replace(choice, is_reversed=not choice.is_reversed)
    if key == "/":
        return replace(choice, is_typing=True)
    if key == "e":
        return replace(choice, has_evidence=not choice.has_evidence, has_help=False)
    if key == "?":
        return replace(choice, has_help=not choice.has_help)
    return choice


def _typed(choice: Choice, key: str) -> Choice:
    if key == "enter":
        return replace(choice, is_typing=False)
    if key == "escape":
        return replace(choice, is_typing=False, filter="")
    if key == "backspace":
        return replace(choice, filter=choice.filter[:-1])
    return replace(choice, filter=choice.filter + key) if len(key) == 1 else choice


_MOVES = {
    "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -_PAGE_ROWS, "pagedown": _PAGE_ROWS,
    "home": -1_000_000, "end": 1_000_000,
}  # fmt: skip


def _moved(selected: RankKey | None, by: int, ranks: Sequence[RankKey]) -> RankKey | None:
    if not ranks:
        return None
    at = ranks.index(selected) + by if selected in ranks else 0
    return ranks[min(max(at, 0), len(ranks) - 1)]


def _after(run: str, runs: Sequence[str]) -> str:
    if not runs:
        return run
    return runs[(runs.index(run) + 1) % len(runs)] if run in runs else runs[0]
