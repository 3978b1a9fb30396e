"""A comparison as text: one sentence, then what differs, then the time of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dfx_agent.commands.compare.comparison import Comparison, Difference, PartDifference
from dfx_agent.commands.compare.medians import Interval
from dfx_agent.commands.history.history_text import table_lines

_MOST_DIFFERENCES = 20
_MOST_PARTS = 12
_LEAST_SHARE = 0.2  # of a difference, to be named in the sentence
_LONGEST_VALUE = 40


def sentence(found: Comparison) -> str:
    """By how much, with its interval; which stage; the only version that differs."""
    if found.problem or found.ratio is None:
        return f"{found.problem}."
    change = _percent_interval(found.ratio)
    if not found.is_certain:
        return f"No difference is certain: {found.b} takes {change} of the time of {found.a}."
    word = "slower" if found.ratio.value > 1 else "faster"
    change = _percent_interval(found.ratio, is_signed=False)
    clauses = [f"{found.b} is {word} than {found.a} by {change}", *_shares(found)]
    return "; ".join([*clauses, *_versions(found.differences)]) + "."


def _shares(found: Comparison) -> Iterator[str]:
    """The parts that make up most of the difference: one, or two."""
    parts = [p for p in found.parts if (p.share_ratio or 0) >= _LEAST_SHARE]
    for part in parts[:2]:
        values = f"{part.b.value:.3g} instead of {part.a.value:.3g} {found.unit}"
        yield f"{100 * (part.share_ratio or 0):.0f} % of it is {part.part} ({values})"


def _versions(differences: Sequence[Difference]) -> Iterator[str]:
    """Packages and drivers, if they are few enough to be the reason."""
    found = [d for d in differences if d.kind in ("package", "device")]
    if len(found) == 1:
        yield f"{_change(found[0])} is the only version that differs"
    elif found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        yield f"versions that differ: {', '.join(map(_change, found[:3]))}{more}"
    config = [d for d in differences if d.kind == "config"]
    if config:
        more = f" and {len(config) - 3} more" if len(config) > 3 else ""
        yield f"settings that differ: {', '.join(map(_change, config[:3]))}{more}"


def _change(difference: Difference) -> str:
    a, b = (_cut(value) or "absent" for value in (difference.a, difference.b))
    return f"{difference.key} {a} → {b}"


def text_lines(found: Comparison, width: int) -> list[str]:
    """All of it."""
    lines = [sentence(found), ""]
    if found.step is not None:
        steps = f"{found.num_steps_a} and {found.num_steps_b} steps of role {found.role}"
        lines += [f"Median of {steps}, mean over ranks, with 95 % interval:"]
        lines += [*_part_lines(found, width), ""]
    return [*lines, *_difference_lines(found, width)]


def _part_lines(found: Comparison, width: int) -> list[str]:
    assert found.step is not None
    rows: list[Sequence[str]] = [
        ("", f"A, {found.unit}", f"B, {found.unit}", "A, s", "B, s", "of difference")
    ]
    parts = [found.step, *found.parts[:_MOST_PARTS]]
    rows += [_part_row(part, is_certain=found.is_certain) for part in parts]
    return table_lines(rows, width)


def _part_row(part: PartDifference, *, is_certain: bool) -> tuple[str, ...]:
    share = part.share_ratio if is_certain else None
    return (
        part.part, _interval(part.a), _interval(part.b), f"{part.a_seconds:.3g}",
        f"{part.b_seconds:.3g}", "" if share is None else f"{100 * share:.0f} %",
    )  # fmt: skip


def _difference_lines(found: Comparison, width: int) -> list[str]:
    if not found.differences:
        return ["No setting, package, device or host fact differs."]
    rows = [("differs", "", "A", "B")]
    rows += [
        (d.kind, d.key, _cut(d.a) or "-", _cut(d.b) or "-")
        for d in found.differences[:_MOST_DIFFERENCES]
    ]
    num_more = len(found.differences) - _MOST_DIFFERENCES
    return [
        *table_lines(rows, width),
        *([f"and {num_more} more: --json has all"] if num_more > 0 else []),
    ]


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3g} [{interval.low:.3g}, {interval.high:.3g}]"


def _percent_interval(ratio: Interval, *, is_signed: bool = True) -> str:
    """For example "+9.8 % [+8.9, +10.6]"; of what is faster without a sign "9.8 % [8.9, 10.6]"."""
    values = [100 * (value - 1) for value in (ratio.value, ratio.low, ratio.high)]
    if is_signed:
        return "{:+.1f} % [{:+.1f}, {:+.1f}]".format(*values)
    ends = sorted(map(abs, values[1:]))
    return f"{abs(values[0]):.1f} % [{ends[0]:.1f}, {ends[1]:.1f}]"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
