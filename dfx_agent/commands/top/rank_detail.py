"""One rank in full: what it does, where its step went, its memory, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from dfx_agent.base.text import age_text, bytes_text, rounded, seconds_text
from dfx_agent.commands.top.rank_rows import age, split_of
from dfx_agent.commands.top.stage_bar import BarPart, parts_of
from dfx_agent.snapshot import RankRow, RunRow, TimeSplit
from dfx_agent.snapshot.banner import banner_of

_NAME, _BAR = 36, 30
_LEAST_SHARE = 0.005  # shorter stages only take lines


def detail_lines(run: RunRow, rank: RankRow, now_seconds: float, *, has_color: bool) -> list[Text]:
    lines = [Text(line) for line in _facts(rank, now_seconds)]
    split = split_of(rank)
    if split is not None:
        which = "running step" if split is rank.current else "last step"
        lines += [Text(), Text(f"{which}, {seconds_text(split.wall_seconds)}:", "bold")]
        lines += _parts(split, has_color=has_color)
    memory = list(_memory(rank))
    if memory:
        lines += [Text(), Text("memory:", "bold"), *map(Text, memory)]
    evidence = [
        line
        for row in banner_of(run, now_seconds)
        if (rank.role, rank.rank) in row.ranks
        for line in row.evidence
    ]
    if evidence:
        lines += [
            Text(),
            Text("said about it:", "bold"),
            *(Text(f"  - {line}") for line in evidence),
        ]
    return lines


def _facts(rank: RankRow, now: float) -> Iterator[str]:
    step = "no step yet" if rank.step is None else f"step {rank.step}"
    place = ", ".join(f"{axis} {number}" for axis, number in rank.place.items())
    yield f"{rank.role} {rank.rank} · {rank.state} · {step}" + (f" · {place}" if place else "")
    devices = f" · {', '.join(rank.device_names)}" if rank.device_names else ""
    yield f"node {rank.node} · pid {rank.pid}{devices}"
    for depth, span in enumerate(rank.inflight):
        number = "" if span.sequence is None else f" #{span.sequence}"
        lead = "  " * depth
        yield f"now: {lead}{span.kind} {span.name}{number} for {age(span.elapsed_seconds)}"
    if not rank.inflight and rank.last_event_seconds is not None:
        yield f"now: between stages; last record {age_text(now - rank.last_event_seconds)} ago"
    tokens = ", ".join(f"{rounded(n)} {kind}" for kind, n in rank.tokens_total.items())
    if tokens:
        yield f"tokens: {tokens}"
    if rank.num_lost_records:
        yield f"records lost: {rank.num_lost_records:,}"


def _parts(split: TimeSplit, *, has_color: bool) -> Iterator[Text]:
    """Stages and kinds of waits with their shares, as bars."""
    least = _LEAST_SHARE * split.wall_seconds
    parts = [part for part in parts_of(split) if part.seconds >= least]
    stages = [part for part in parts if part.name not in {"wait", "idle"}]
    for part in stages:
        yield _part(part, part.name, split, has_color=has_color)
    for kind, by_stage in sorted(split.wait_seconds.items()):
        waited = sum(by_stage.values())
        where = max(by_stage, key=lambda stage: by_stage[stage], default="")
        name = f"wait {kind}" + (f" in {where}" if where else "")
        yield _part(BarPart("wait", waited, waited), name, split, has_color=has_color)
    idle = split.idle_seconds
    yield _part(BarPart("idle", idle, idle), "idle", split, has_color=has_color)


def _part(part: BarPart, name: str, split: TimeSplit, *, has_color: bool) -> Text:
    share = part.seconds / split.wall_seconds if split.wall_seconds > 0 else 0.0
    head = f"  {name:<{_NAME}.{_NAME}} {seconds_text(part.seconds):>9} {share:>5.0%}  "
    return Text(head).append_text(part.mark(round(min(1.0, share) * _BAR), has_color=has_color))


def _memory(rank: RankRow) -> Iterator[str]:
    for device in rank.devices:
        limit = "" if device.limit_bytes is None else f" of {bytes_text(device.limit_bytes)}"
        reserved = device.reserved_bytes
        held = "" if reserved is None else f", {bytes_text(reserved)} reserved"
        allocated = device.allocated_bytes
        used = "unknown" if allocated is None else bytes_text(allocated)
        yield f"  {device.device}: {used}{limit} allocated{held}"
    host = rank.host_memory
    if host is not None:
        slope = host.slope_bytes_per_step
        grows = f", {bytes_text(slope)} more each step" if slope and slope > 0 else ""
        yield f"  host: {bytes_text(host.anonymous_bytes)}{grows}"
