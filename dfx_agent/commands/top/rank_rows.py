"""The ranks of a run in the order of the screen: a row of text each, and one for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from rich.cells import set_cell_size
from rich.text import Text

from dfx_agent.base.text import age_text
from dfx_agent.commands.top.stage_bar import bar, wait_seconds
from dfx_agent.commands.top.view import Choice, RankKey, Sort
from dfx_agent.snapshot import RankRow, RunRow, TimeSplit
from dfx_agent.snapshot.banner import BannerLevel, blamed_ranks

SIGNS: dict[str, str] = {
    "bad": "✕",
    "warn": "▲",
    "unsure": "?",
    "note": "i",
    "good": "✓",
    "quiet": "·",
}
COLORS: dict[str, str] = {
    "bad": "bold #ff7078", "warn": "#e8ae45", "unsure": "#7ea2ff", "note": "#7ea2ff",
    "good": "#4cc583", "quiet": "#98a3b3",
}  # fmt: skip
_RANK, _NOW, _FOR, _SECONDS = 12, 18, 7, 7
_LEAST_BAR = 8
_LONGER = 1.5  # a running step this much longer than the last one is drawn instead of it


def split_of(rank: RankRow) -> TimeSplit | None:
    """The step that is drawn: the last one, or the running one if that takes much longer."""
    if rank.source != "guest":
        return None
    last, current = rank.last, rank.current
    if last is None or current.wall_seconds > _LONGER * last.wall_seconds:
        return current if current.wall_seconds > 0 else last
    return last


def memory_bytes(rank: RankRow) -> float | None:
    """Of the fullest device; of the host without devices."""
    devices = [device.allocated_bytes for device in rank.devices]
    sizes = [num_bytes for num_bytes in devices if num_bytes is not None]
    sizes = sizes or list(rank.device_bytes.values())
    if sizes:
        return max(sizes)
    return rank.host_memory.anonymous_bytes if rank.host_memory else None


def ordered(run: RunRow, choice: Choice) -> list[RankRow]:
    """Ranks that the filter leaves, in the chosen order."""
    ranks = [rank for rank in run.ranks if _matches(rank, choice.filter)]
    blamed = blamed_ranks(run)
    key: Callable[[RankRow], tuple[float, ...]]
    if choice.sort == "worst":
        middle = _median_work(run)
        key = lambda rank: _badness(rank, blamed, middle)  # noqa: E731 (one of two keys)
    else:
        key = _KEYS[choice.sort]
    return sorted(ranks, key=lambda rank: (key(rank), rank.role), reverse=choice.is_reversed)


def _matches(rank: RankRow, text: str) -> bool:
    """All words of the filter are in what the row says; a number alone is a rank."""
    stages = " ".join(span.name for span in rank.inflight)
    says = f"{rank.role} {rank.node} {rank.state} {stages}".lower()
    return all(
        word == rank.rank if word.isdecimal() else word in says for word in text.lower().split()
    )


def _badness(
    rank: RankRow, blamed: dict[RankKey, BannerLevel], middle: dict[str, float]
) -> tuple[float, ...]:
    """Blamed ranks, dead ranks, then those that work longest for their role."""
    order = list(blamed)
    key = (rank.role, rank.rank)
    split = split_of(rank)
    work = split.active_seconds / middle[rank.role] if split and middle.get(rank.role) else 0.0
    is_dead = rank.state == "died"
    place = order.index(key) if key in blamed else len(order)
    return (float(place), float(not is_dead), -round(work, 1), *_number(rank))


def _median_work(run: RunRow) -> dict[str, float]:
    by_role: dict[str, list[float]] = {}
    for rank in run.ranks:
        split = split_of(rank)
        if split:
            by_role.setdefault(rank.role, []).append(split.active_seconds)
    return {role: median(seconds) for role, seconds in by_role.items()}


def _number(rank: RankRow) -> tuple[float, ...]:
    return (float(rank.rank) if rank.rank.isdecimal() else float("inf"), float(rank.pid))


def _work(rank: RankRow) -> float:
    split = split_of(rank)
    return split.active_seconds if split else -1.0


def _wait(rank: RankRow) -> float:
    split = split_of(rank)
    return wait_seconds(split) if split else -1.0


_KEYS: dict[Sort, Callable[[RankRow], tuple[float, ...]]] = {
    "rank": _number,
    "work": lambda rank: (-_work(rank), *_number(rank)),
    "wait": lambda rank: (-_wait(rank), *_number(rank)),
    "memory": lambda rank: (-(memory_bytes(rank) or 0.0), *_number(rank)),
    "step": lambda rank: (-1.0 if rank.step is None else float(rank.step), *_number(rank)),
}


class RankTable:
    """Rows of one frame: a fixed width, bars on one scale."""

    def __init__(self, run: RunRow, width: int, *, has_color: bool) -> None:
        self._blamed, self._width, self._has_color = blamed_ranks(run), width, has_color
        self._roles = {rank.role for rank in run.ranks}
        self._step = max((rank.step for rank in run.ranks if rank.step is not None), default=None)
        splits = [split for split in map(split_of, run.ranks) if split]
        self._full_seconds = max((split.wall_seconds for split in splits), default=0.0)
        longest = max((len(self._name(rank)) for rank in run.ranks), default=0)
        self._rank = min(max(longest + 2, 6), _RANK if width < 120 else 2 * _RANK)
        used = self._rank + _NOW + _FOR + 2 * _SECONDS + 6
        self._bar = max(_LEAST_BAR, width - used)

    def head(self) -> Text:
        full = _short(self._full_seconds)
        scale = f"STEP, FULL WIDTH {full}" if self._bar > 25 else f"STEP {full}"
        cells = [
            set_cell_size("RANK", self._rank), set_cell_size("NOW", _NOW), f"{'FOR':>{_FOR}}",
            "", set_cell_size(scale, self._bar), f"{'WORK':>{_SECONDS}}", f"{'WAIT':>{_SECONDS}}",
        ]  # fmt: skip
        return Text(" ".join(cells), "bold" if self._has_color else "")

    def row(self, rank: RankRow, *, is_selected: bool = False) -> Text:
        level = self._blamed.get((rank.role, rank.rank), "")
        sign = SIGNS[level] if level else "†" if rank.state == "died" else " "
        name = set_cell_size(f"{sign}{'>' if is_selected else ' '}{self._name(rank)}", self._rank)
        now, elapsed = self._now(rank)
        split = split_of(rank)
        text = Text(f"{name} {set_cell_size(now, _NOW)} {elapsed:>{_FOR}}  ")
        is_victim = bool(self._blamed) and not level
        if self._has_color:
            text.stylize(COLORS[level] if level else COLORS["quiet"] if is_victim else "")
        if split is None:
            text.append(set_cell_size("no steps", self._bar))
            text.append(f" {'-':>{_SECONDS}} {'-':>{_SECONDS}}")
        else:
            text.append_text(bar(split, self._full_seconds, self._bar, has_color=self._has_color))
            text.append(f" {_short(split.active_seconds):>{_SECONDS}}")
            text.append(f" {_short(wait_seconds(split)):>{_SECONDS}}")
        if is_selected and self._has_color:
            text.stylize("reverse", 0, self._rank)
        return text

    def rest(self, ranks: Sequence[RankRow]) -> Text:
        """Ranks that have no row, in one line."""
        states = Counter(rank.state for rank in ranks)
        words = ", ".join(f"{number:,} {state}" for state, number in states.most_common())
        work = sorted(split.active_seconds for split in map(split_of, ranks) if split)
        spread = ""
        if work:
            spread = f"; work {_short(work[0])} to {_short(work[-1])}"
        blamed = sum((rank.role, rank.rank) in self._blamed for rank in ranks)
        blame = f", {blamed} blamed" if blamed else ""
        line = f"  and {len(ranks):,} more ranks: {words}{blame}{spread}"
        return Text(line, COLORS["quiet"] if self._has_color else "", no_wrap=True)

    def _name(self, rank: RankRow) -> str:
        return f"{rank.role} {rank.rank}" if len(self._roles) > 1 else rank.rank

    def _now(self, rank: RankRow) -> tuple[str, str]:
        if rank.is_suspended:
            return "suspended", ""
        if rank.outside is not None and rank.outside.is_starting:
            return "starting", ""
        if rank.state not in {"live", "unknown"}:
            return rank.state, ""
        if not rank.inflight:
            return "between stages" if rank.source == "guest" else "observed", ""
        span = rank.inflight[-1]
        stage = next((s.name for s in reversed(rank.inflight) if s.kind == "stage"), "")
        if span.kind == "stage":
            return span.name, age(span.elapsed_seconds)
        wait = f"wait {span.name.partition('@')[0]}"
        where = f"{wait} in {stage}" if stage else wait
        return where if len(where) <= _NOW else wait, age(span.elapsed_seconds)


def age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 99.95 else age_text(seconds)


def _short(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else age(seconds)
