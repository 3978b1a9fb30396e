"""The drawings of a run's report as rectangles, lines and texts: a template writes them as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from statistics import median

from dfx_agent.base.text import rounded, seconds_text
from dfx_agent.catalogue.palette import (
    IDLE_COLOR,
    LESS,
    MIDDLE,
    MORE,
    WAIT_COLOR,
    stage_color,
    stage_order,
)
from dfx_agent.snapshot import (
    RunRow,
    SignalHistory,
    SignalSeries,
    StepCell,
    TimelineRow,
    TimeSplit,
)

_WIDTH, _LABEL, _ROW = 1000.0, 110.0, 18.0
_CURVE_WIDTH, _CURVE_HEIGHT = 320.0, 90.0
_MAX_BARS, _MAX_MAP_ROWS, _MAX_LANES, _MAX_PIECES = 32, 64, 16, 4000
_FULL_RATIO = 1.5  # to the median, at which a colour of the heatmap is full

RankKey = tuple[str, str]  # role, rank


@dataclass(frozen=True, slots=True)
class Rect:
    """``title`` is what a browser shows on hover."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """``points``: as in the attribute of an SVG polyline; ``kind``: "value", "band" or "mark"."""

    points: str
    kind: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text at the left end of a row."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """One picture; ``caption`` says what it shows."""

    caption: str
    width: float
    height: float
    rects: tuple[Rect, ...] = ()
    lines: tuple[Line, ...] = ()
    labels: tuple[Label, ...] = ()


def curve_drawings(history: SignalHistory, marked_steps: Iterable[int]) -> list[Drawing]:
    """One for each signal: values, usual range, and a mark where an incident began."""
    marks = sorted(set(marked_steps))
    return [
        _curve(series, history.steps, marks)
        for series in history.signals
        if sum(value is not None for value in series.values) > 1
    ]


def bar_drawing(run: RunRow, blamed: Iterable[RankKey]) -> Drawing | None:
    """The last step of each rank: stages, waits, idle. Blamed ranks first."""
    order = list(blamed)
    ranks = [rank for rank in run.ranks if rank.last is not None]
    ranks.sort(key=lambda rank: _place(order, (rank.role, rank.rank)))
    shown = ranks[:_MAX_BARS]
    full = max((rank.last.wall_seconds for rank in shown if rank.last), default=0.0)
    if full <= 0:
        return None
    rects: list[Rect] = []
    labels = []
    for row, rank in enumerate(shown):
        labels.append(Label(0, row * _ROW + 13, f"{rank.role} {rank.rank}"))
        rects += _bar(rank.last or TimeSplit(), full, row * _ROW)
    left = (
        f"; {len(ranks) - len(shown)} more ranks are not drawn" if len(ranks) > len(shown) else ""
    )
    caption = f"Last step of each rank, full width {seconds_text(full)}{left}"
    return Drawing(caption, _WIDTH, len(shown) * _ROW, tuple(rects), labels=tuple(labels))


def heatmap_drawing(run: RunRow, blamed: Iterable[RankKey]) -> Drawing | None:
    """Work of each rank in each closed step, against the median of the step."""
    roles = [rank.role for rank in run.ranks if rank.last is not None]
    role = max(roles, key=roles.count, default="")
    steps = [step for step in run.steps if step.role == role]
    order = list(blamed)
    names = list(dict.fromkeys(cell.rank for step in steps for cell in step.cells))
    names.sort(key=lambda rank: _place(order, (role, rank)))
    shown = names[:_MAX_MAP_ROWS]
    if not shown:
        return None
    width = (_WIDTH - _LABEL) / len(steps)
    rects: list[Rect] = []
    for column, step in enumerate(steps):
        cells = {cell.rank: cell for cell in step.cells}
        middle = median(cell.split.active_seconds for cell in step.cells)
        rects += _cells(cells, shown, middle, _LABEL + column * width, width, step.step)
    labels = [Label(0, row * _ROW + 13, f"{role} {rank}") for row, rank in enumerate(shown)]
    caption = (
        f"Work of each rank in steps {steps[0].step} to {steps[-1].step}, against the median of "
        "the step: blue is less, orange is more"
    )
    return Drawing(caption, _WIDTH, len(shown) * _ROW, tuple(rects), labels=tuple(labels))


def timeline_drawing(rows: Sequence[TimelineRow], blamed: Iterable[RankKey]) -> Drawing | None:
    """The latest steps of the first ranks, exact."""
    order = list(blamed)
    keys = list(dict.fromkeys((row.role, row.rank) for row in rows))
    keys.sort(key=lambda key: _place(order, key))
    shown = keys[:_MAX_LANES]
    pieces = [p for row in rows if (row.role, row.rank) in shown for p in row.pieces]
    begin = min((piece.begin_seconds for piece in pieces), default=0.0)
    end = max((piece.end_seconds for piece in pieces), default=0.0)
    if end <= begin or len(pieces) > _MAX_PIECES * 4:
        return None
    scale = (_WIDTH - _LABEL) / (end - begin)
    rects = [
        Rect(
            _LABEL + (piece.begin_seconds - begin) * scale,
            shown.index((row.role, row.rank)) * _ROW + 2,
            max(0.2, (piece.end_seconds - piece.begin_seconds) * scale),
            _ROW - 4,
            _color(piece.kind, piece.name),
            f"{'wait ' if piece.kind == 'wait' else ''}{piece.name or piece.kind}, "
            f"{seconds_text(piece.end_seconds - piece.begin_seconds)}, step {row.step}",
        )
        for row in rows
        if (row.role, row.rank) in shown
        for piece in row.pieces
    ]
    rects.sort(key=lambda rect: -rect.width)
    labels = [
        Label(0, lane * _ROW + 13, f"{role} {rank}") for lane, (role, rank) in enumerate(shown)
    ]
    caption = f"Timeline of the latest steps, full width {seconds_text(end - begin)}"
    drawn = tuple(rects[:_MAX_PIECES])
    return Drawing(caption, _WIDTH, len(shown) * _ROW, drawn, labels=tuple(labels))


def legend_of(run: RunRow) -> list[tuple[str, str]]:
    """(name, colour) of the stages in the bars, then waits and idle time."""
    names = {name for rank in run.ranks if rank.last for name in rank.last.stage_seconds}
    stages = [(name, stage_color(name)) for name in sorted(names, key=stage_order)]
    return [*stages, ("waits", WAIT_COLOR), ("idle", IDLE_COLOR)] if stages else []


def _place(order: Sequence[RankKey], key: RankKey) -> tuple[int, int, str]:
    number = int(key[1]) if key[1].isdecimal() else 1 << 31
    return (order.index(key) if key in order else len(order), number, key[0])


def _color(kind: str, name: str) -> str:
    return {"wait": WAIT_COLOR, "idle": IDLE_COLOR}.get(kind) or stage_color(name)


def _bar(split: TimeSplit, full_seconds: float, y: float) -> Iterator[Rect]:
    stages = sorted(split.stage_seconds.items(), key=lambda item: stage_order(item[0]))
    total = sum(seconds for _, seconds in stages)
    squeeze = min(1.0, split.active_seconds / total) if total > 0 else 1.0
    parts = [("stage", name, seconds, seconds * squeeze) for name, seconds in stages]
    waits = ((kind, sum(by_stage.values())) for kind, by_stage in split.wait_seconds.items())
    parts += [("wait", f"wait {kind}", seconds, seconds) for kind, seconds in sorted(waits)]
    parts.append(("idle", "idle", split.idle_seconds, split.idle_seconds))
    x, scale = _LABEL, (_WIDTH - _LABEL) / full_seconds
    for kind, name, seconds, drawn in parts:
        title = f"{name}: {seconds_text(seconds)}"
        yield Rect(x, y + 2, drawn * scale, _ROW - 4, _color(kind, name), title)
        x += drawn * scale


def _cells(
    cells: Mapping[str, StepCell], ranks: Sequence[str], middle: float, x: float, width: float,
    step: int,
) -> Iterator[Rect]:  # fmt: skip
    for row, rank in enumerate(ranks):
        if rank in cells:
            seconds = cells[rank].split.active_seconds
            title = f"rank {rank}, step {step}: {seconds_text(seconds)}"
            fill = _ratio_color(seconds / middle if middle > 0 else 1.0)
            yield Rect(x, row * _ROW + 1, width, _ROW - 2, fill, title)


def _ratio_color(ratio: float) -> str:
    place = log(max(ratio, 1e-6)) / log(_FULL_RATIO)
    share = min(1.0, abs(place))
    end = MORE if place > 0 else LESS
    mixed = (round(a + (b - a) * share) for a, b in zip(MIDDLE, end, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _curve(series: SignalSeries, steps: Sequence[int], marks: Sequence[int]) -> Drawing:
    finite = [value for value in series.values if value is not None and isfinite(value)] or [0.0]
    room = (max(finite) - min(finite)) / 2  # more of the usual range would flatten the values
    low, high = min(finite) - room, max(finite) + room
    top, height = 16.0, _CURVE_HEIGHT - 20.0
    span, width = (high - low) or 1.0, _CURVE_WIDTH / max(1, len(steps) - 1)

    def at(column: int, value: float) -> str:
        share = min(1.0, max(0.0, (value - low) / span))
        return f"{column * width:.1f},{top + height * (1 - share):.1f}"

    lines = [Line(" ".join(part), "value") for part in _runs(series.values, at)]
    bands = (series.baseline_low, series.baseline_high)
    lines += [Line(" ".join(part), "band") for band in bands for part in _runs(band, at)]
    for step in marks:
        if step in steps:
            x = steps.index(step) * width
            lines.append(Line(f"{x:.1f},{top} {x:.1f},{top + height}", "mark"))
    latest = next((value for value in reversed(series.values) if value is not None), 0.0)
    name = series.signal.replace("_", " ")
    spread = f"{rounded(min(finite))} to {rounded(max(finite))}"
    caption = f"{name}: {rounded(latest)} at step {steps[-1]}, {spread} since step {steps[0]}"
    return Drawing(caption, _CURVE_WIDTH, _CURVE_HEIGHT, lines=tuple(lines))


def _runs(values: Sequence[float | None], at: Callable[[int, float], str]) -> Iterator[list[str]]:
    """Neighbouring finite values as points; a gap ends a line."""
    part: list[str] = []
    for column, value in enumerate(values):
        if value is not None and isfinite(value):
            part.append(at(column, value))
        elif part:
            yield part
            part = []
    if part:
        yield part
