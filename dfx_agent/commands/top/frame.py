"""One frame of ``top``: lines of text, a pure function of data, choice, size and colour."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from dfx_agent.base.text import bytes_text, rounded, seconds_text
from dfx_agent.commands.top.rank_detail import detail_lines
from dfx_agent.commands.top.rank_rows import (
    COLORS,
    SIGNS,
    RankTable,
    ordered,
    split_of,
)
from dfx_agent.commands.top.stage_bar import legend, sparkline
from dfx_agent.commands.top.view import Choice, Curve, RankKey, Shown, run_of
from dfx_agent.snapshot import RankRow, RunRow
from dfx_agent.snapshot.banner import (
    BannerLine,
    banner_of,
    banner_of_ended,
    blamed_ranks,
    step_seconds_of,
)

SMALLEST_WIDTH, SMALLEST_HEIGHT = 40, 10
_TALL = 30  # from this height texts of the banner may be longer
_MAX_ENDED = 3
_LEAST_EVIDENCE = 3  # lines; fewer say little
_KEYS = "q quit  s sort  r reverse  / filter  ↑↓ select  ⏎ rank  e evidence  ? help"
_HELP = (
    "q, Ctrl-C      quit",
    "s              sort: worst, rank, work, wait, memory, step",
    "r              reverse the order",
    "/              filter by role, node, state, stage or rank number; Enter applies, Esc clears",
    "↑ ↓ PgUp PgDn  select a rank (also k and j)",
    "Enter          the selected rank in full; again: back",
    "e              evidence of all incidents",
    "Tab            the next run",
    "Esc            back to all ranks",
    "",
    "A bar is the last step of a rank: stages in colours (letters without colour), ░ waits,",
    "· idle time. A rank that is much longer in its running step shows that step.",
)


@dataclass(frozen=True, slots=True)
class Size:
    """Of the terminal. Without ``is_live`` there are no keys to press."""

    width: int
    height: int
    has_color: bool = True
    is_live: bool = True


def frame(shown: Shown, choice: Choice, size: Size) -> list[Text]:
    """At most ``size.height`` lines, none wider than ``size.width``."""
    if size.width < SMALLEST_WIDTH or size.height < SMALLEST_HEIGHT:
        needed = f"make the terminal {SMALLEST_WIDTH} × {SMALLEST_HEIGHT} or larger"
        return [_fit(Text(needed), size)]
    run = run_of(shown, choice)
    lines = _trouble(shown, size)
    foot = _foot(shown, choice, run, size)
    if run is None:
        lines += _without_run(shown, choice, size)
    else:
        lines = [_header(shown, run, choice, size), *lines, *_banner(shown, run, size), Text()]
        room = size.height - len(lines) - len(foot)
        lines += _body(shown, run, choice, size, room)
    lines = lines[: size.height - len(foot)]
    if size.is_live:
        lines += [Text()] * (size.height - len(lines) - len(foot))
    return [_fit(line, size) for line in (*lines, *foot)]


def rank_keys(shown: Shown, choice: Choice) -> list[RankKey]:
    """The ranks that the keys can select, in the order of the screen."""
    run = run_of(shown, choice)
    return [(rank.role, rank.rank) for rank in ordered(run, choice)] if run else []


def _fit(line: Text, size: Size) -> Text:
    fitted = line.copy()
    fitted.truncate(size.width, overflow="ellipsis")
    return fitted


def _style(level: str, size: Size) -> str:
    return COLORS[level] if size.has_color else ""


def _header(shown: Shown, run: RunRow, choice: Choice, size: Size) -> Text:
    living = sum(rank.state in {"live", "unknown"} for rank in run.ranks)
    steps = [rank.step for rank in run.ranks if rank.step is not None]
    steps = steps or [step.step for step in run.steps]
    role = next((rank.role for rank in run.ranks if rank.last), "")
    seconds = step_seconds_of(run, role)
    num_runs = len(shown.snapshot.runs) if shown.snapshot else 0
    others = f" (Tab: 1 of {num_runs} runs)" if num_runs > 1 and size.is_live else ""
    is_sorted = size.is_live and (choice.sort != "worst" or choice.is_reversed)
    facts = [
        f"{run.run}{others}",
        f"by {choice.sort}{' reversed' if choice.is_reversed else ''}" if is_sorted else "",
        f"step {max(steps)}" if steps else "no step yet",
        "" if seconds is None else f"{seconds_text(seconds)} a step",
        f"{living:,} of {len(run.ranks):,} ranks live",
        time.strftime("%H:%M:%S", time.localtime(shown.now_seconds)),
    ]
    return Text(" · ".join(filter(None, facts)), "bold" if size.has_color else "")


def _trouble(shown: Shown, size: Size) -> list[Text]:
    """Why the rest is old, or is not there."""
    if not shown.problem:
        return []
    lines = _filled(f"✕ {shown.problem}", "  ", size, 3)
    return [Text(line, _style("bad", size)) for line in lines]


def _banner(shown: Shown, run: RunRow, size: Size) -> list[Text]:
    """The worst problem in full, the next ones by their titles."""
    first, *others = banner_of(run, shown.now_seconds)
    lines = _banner_lines(first, size)
    rest = [line for line in others if line.level in {"bad", "warn", "unsure"}]
    num_named = 3 if size.height >= _TALL else 1
    for line in rest[:num_named]:
        lines.append(Text(f"{SIGNS[line.level]} {line.title}", _style(line.level, size)))
    if run.ending and not first.title.startswith(run.ending.removesuffix(".")):
        lines += [Text(text) for text in _filled(f"· {run.ending}", "  ", size, 2)]
    if len(rest) > num_named:
        lines.append(Text(f"  and {len(rest) - num_named} more problems: press e"))
    return lines


def _banner_lines(line: BannerLine, size: Size) -> list[Text]:
    """Who and what; since when and at what cost; what to do."""
    most = 3 if size.height >= _TALL else 2
    title = _filled(f"{SIGNS[line.level]} {line.title}", "  ", size, most)
    lines = [Text(text, _style(line.level, size)) for text in title]
    lines += [Text(text) for text in _filled(f"  {line.detail}", "  ", size, most) if text.strip()]
    if line.action:
        lines += [
            Text(text, "bold" if size.has_color else "")
            for text in _filled(f"  Do: {line.action}", "      ", size, most)
        ]
    return lines


def _filled(text: str, indent: str, size: Size, most: int) -> list[str]:
    width = size.width - 1
    wrapped = textwrap.wrap(
        text, width, subsequent_indent=indent, max_lines=most, placeholder=" …",
        drop_whitespace=True, break_on_hyphens=False,
    )  # fmt: skip
    lead = text[: len(text) - len(text.lstrip())]
    return [lead + wrapped[0].lstrip(), *wrapped[1:]] if wrapped else []


def _without_run(shown: Shown, choice: Choice, size: Size) -> list[Text]:
    if shown.snapshot is None:
        return [] if shown.problem else [Text(f"Waiting for {shown.source or 'the first data'}")]
    lines: list[Text] = []
    for ended in shown.snapshot.finished[:_MAX_ENDED]:
        style = "bold" if size.has_color else ""
        lines += [Text(f"run {ended.run}, which has ended:", style)]
        lines += [*_banner_lines(banner_of_ended(ended), size), Text()]
    if choice.run:
        return [*lines, Text(f"No run named {choice.run} {shown.place}.")]
    return [
        *lines,
        Text(f"No observed process {shown.place}."),
        Text("Do: start one with `dfx-agent run -- CMD ...`, or `dfx-agent attach --pid PID`."),
    ]


def _body(shown: Shown, run: RunRow, choice: Choice, size: Size, room: int) -> list[Text]:
    if choice.has_help:
        return [Text(line) for line in _HELP]
    if choice.has_evidence:
        return _evidence(shown, run, size, room)
    if choice.has_detail:
        rank = next((r for r in run.ranks if (r.role, r.rank) == choice.selected), None)
        if rank is not None:
            lines = detail_lines(run, rank, shown.now_seconds, has_color=size.has_color)
            return _cut(lines, size, room)
    table = _table(run, choice, size, room)
    if room - len(table) < _LEAST_EVIDENCE:
        return table
    return [*table, Text(), *_worst_evidence(shown, run, size, room - len(table) - 1)]


def _worst_evidence(shown: Shown, run: RunRow, size: Size, room: int) -> list[Text]:
    """Why the worst problem is reported, where a small job leaves room for it."""
    worst = banner_of(run, shown.now_seconds)[0]
    if worst.level not in {"bad", "warn", "unsure"}:
        return []
    return _cut([Text(f"- {line}") for line in worst.evidence[1:]], size, room)


def _evidence(shown: Shown, run: RunRow, size: Size, room: int) -> list[Text]:
    lines: list[Text] = []
    for line in banner_of(run, shown.now_seconds):
        lines.append(Text(f"{SIGNS[line.level]} {line.title}", _style(line.level, size)))
        lines += [Text(f"  - {text}") for text in line.evidence]
    return _cut(lines, size, room)


def _cut(lines: Sequence[Text], size: Size, room: int) -> list[Text]:
    """Long lines folded; what does not fit is counted."""
    folded = [
        part
        for line in lines
        for part in (
            [line]
            if line.cell_len <= size.width
            else [
                Text(text)
                for text in textwrap.wrap(line.plain, size.width - 1, subsequent_indent="    ")
            ]
        )
    ]
    if len(folded) <= room:
        return folded
    return [*folded[: room - 1], Text(f"  and {len(folded) - room + 1} more lines")]


def _table(run: RunRow, choice: Choice, size: Size, room: int) -> list[Text]:
    """Rows around the selected rank; a line sums up the ranks that have none."""
    ranks = ordered(run, choice)
    if not ranks:
        return [Text(f"no rank matches {choice.filter!r}" if choice.filter else "no ranks")]
    table = RankTable(run, size.width, has_color=size.has_color)
    num_rows = room - 1
    if len(ranks) > num_rows:
        num_rows = max(1, num_rows - 1)
    keys = [(rank.role, rank.rank) for rank in ranks]
    at = keys.index(choice.selected) if choice.selected in keys else 0
    begin = max(0, min(at - num_rows // 2, len(ranks) - num_rows))
    rows = ranks[begin : begin + num_rows]
    lines = [table.head()]
    for rank in rows:
        is_selected = (rank.role, rank.rank) == choice.selected
        lines.append(table.row(rank, is_selected=is_selected))
    rest = [*ranks[:begin], *ranks[begin + num_rows :]]
    return [*lines, table.rest(rest)] if rest else lines


def _foot(shown: Shown, choice: Choice, run: RunRow | None, size: Size) -> list[Text]:
    lines = []
    if run is not None:
        splits = [split for split in map(split_of, _some(run)) if split]
        lines.append(legend(splits, size.width, has_color=size.has_color))
        curves = shown.curves.get(run.run, ())
        if curves:
            lines.append(_curves(curves, size))
    if not size.is_live:
        return lines
    if choice.is_typing or choice.filter:
        typed = f"filter: {choice.filter}{'_' if choice.is_typing else ''}"
        return [*lines, Text(f"{typed}   Enter applies it, Esc clears it")]
    return [*lines, Text(_KEYS, "dim" if size.has_color else "")]


def _some(run: RunRow) -> Sequence[RankRow]:
    """Enough ranks for the legend, the blamed ones included."""
    blamed = blamed_ranks(run)
    return [*run.ranks[:64], *(r for r in run.ranks[64:] if (r.role, r.rank) in blamed)]


def _curves(curves: Sequence[Curve], size: Size) -> Text:
    """Sparklines next to each other, each with its latest value."""
    share = size.width // len(curves)
    drawn = Text()
    for curve in curves:
        latest = next((v for v in reversed(curve.values) if v is not None), None)
        value = "-" if latest is None else rounded(latest)
        value = bytes_text(latest) if latest is not None and curve.unit == "bytes" else value
        room = share - len(curve.name) - len(value) - 4
        text = f"{curve.name} {sparkline(curve.values, min(room, 60))} {value}"
        drawn.append(f"{text:<{share}}")
    return drawn
